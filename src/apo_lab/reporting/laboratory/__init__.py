"""What the laboratory's runs come to: tables, figures, verdicts on the predictions."""

from apo_lab.reporting.laboratory.report import laboratory_report

__all__ = ["laboratory_report"]

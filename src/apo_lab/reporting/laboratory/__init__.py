"""Tables and figures of the laboratory's runs, and the outcomes of the predictions."""

from apo_lab.reporting.laboratory.report import laboratory_report

__all__ = ["laboratory_report"]

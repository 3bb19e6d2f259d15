"""The laboratory's page, made from the published tables and the protocol alone."""

from apo_lab.reporting.laboratory.report import laboratory_page, laboratory_report

__all__ = ["laboratory_page", "laboratory_report"]

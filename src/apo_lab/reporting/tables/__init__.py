"""The tables of a report, one builder each."""

from apo_lab.reporting.tables.all_tables import report_tables
from apo_lab.reporting.tables.beside import beside_published
from apo_lab.reporting.tables.coverage import coverage_table
from apo_lab.reporting.tables.health import health_table
from apo_lab.reporting.tables.hyperparameters import hyperparameter_table
from apo_lab.reporting.tables.lost_gained import lost_gained_table
from apo_lab.reporting.tables.main_results import held_out_table, main_results
from apo_lab.reporting.tables.sensitivity import sensitivity_table, swept_methods

__all__ = [
    "beside_published",
    "coverage_table",
    "health_table",
    "held_out_table",
    "hyperparameter_table",
    "lost_gained_table",
    "main_results",
    "report_tables",
    "sensitivity_table",
    "swept_methods",
]

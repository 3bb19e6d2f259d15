"""The tables of a report, one builder each."""

from collections.abc import Sequence

from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.records import Covered, Measurement, RunCard, Table
from apo_lab.reporting.tables.beside import beside_published, coverage_table, hyperparameter_table
from apo_lab.reporting.tables.comparisons import comparison_table
from apo_lab.reporting.tables.costs import cost_table
from apo_lab.reporting.tables.equal_budget import equal_budget_table
from apo_lab.reporting.tables.health import health_table
from apo_lab.reporting.tables.lost_gained import lost_gained_table
from apo_lab.reporting.tables.main_results import held_out_table, main_results
from apo_lab.reporting.tables.sensitivity import sensitivity_table, swept_methods
from apo_lab.reporting.tables.settings import settings_table


def report_tables(
    runs: Sequence[RunCard],
    measured: Sequence[Measurement],
    covered: Sequence[Covered] = (),
    defaults: Defaults | None = None,
) -> tuple[Table, ...]:
    """The tables that have rows, in the order of a report. Arguments as in `figures.report.report_figures`."""
    tables = (
        main_results(measured),
        held_out_table(measured),
        *(sensitivity_table(measured, block=b, method=a, defaults=defaults) for b, a in swept_methods(measured)),
        health_table(measured),
        comparison_table(measured),
        lost_gained_table(measured),
        cost_table(runs, defaults),
        equal_budget_table(runs, defaults),
        coverage_table(covered),
        hyperparameter_table(runs),
        beside_published(measured),
        settings_table(measured),
    )
    return tuple(table for table in tables if table.rows)

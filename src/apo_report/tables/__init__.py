"""The tables of a report, one builder each."""

from collections.abc import Sequence

from apo_report.records import Covered, Measurement, RunCard, Table
from apo_report.runs import Defaults
from apo_report.tables.accuracies import held_out_table, main_results, sensitivity_table, swept_methods
from apo_report.tables.cells import without_absent
from apo_report.tables.comparisons import comparison_table
from apo_report.tables.published import beside_published, coverage_table, health_table, hyperparameter_table
from apo_report.tables.runs import runs_table


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
        coverage_table(covered),
        runs_table(runs, defaults),
        hyperparameter_table(runs),
        beside_published(measured),
    )
    return tuple(without_absent(table) for table in tables if table.rows)

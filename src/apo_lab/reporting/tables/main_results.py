"""Models × methods × benchmarks, and what training runs measured on their own held-out problems."""

from collections.abc import Sequence

from apo_lab.reporting.names import BASE, BENCHMARKS, benchmark_name, in_order
from apo_lab.reporting.records import Cell, Measurement, Table, TableRow, left, right, row_of
from apo_lab.reporting.tables.cells import (
    HOW_TO_READ,
    SEEDS,
    Accuracies,
    points_cell,
    seeds_cell,
    share_cell,
    with_best_bold,
)
from apo_lab.reporting.tables.series import (
    INTERVALS,
    budgets,
    common_benchmarks,
    data_notes,
    evaluated,
    series,
    without_variants,
)


def main_results(measurements: Sequence[Measurement]) -> Table:
    """Pass@1 and Pass@K [%] of every method on every benchmark, and their averages.

    A block for each model; several where its policies were measured in several ways, as at two temperatures. K is a
    benchmark's sample budget. Averages are over the benchmarks that all methods of the block have. A run that
    departs from its method's defaults is left to the sensitivity table, unless its method has no other.

    Source: the paper's table of main results.
    """
    chosen = evaluated(measurements)
    shown = without_variants(series(chosen))
    common = common_benchmarks(shown)
    has_averages = any(len(names) > 1 for names in common.values())
    benchmarks = in_order((name for item in shown for name in item.by_benchmark), BENCHMARKS)
    accuracies = Accuracies(benchmarks, budgets(chosen), has_averages)
    rows = with_best_bold(
        [
            row_of(item.head.name, *accuracies.cells(item, common[item.head.block]), section=item.head.block)
            for item in shown
        ]
    )
    notes = [HOW_TO_READ]
    if has_averages:
        notes.append("Average over the benchmarks that all methods of a block have.")
    return Table(
        name="main_results",
        title="Main results",
        columns=accuracies.columns("Method"),
        rows=rows,
        notes=(*notes, *data_notes(chosen)),
    )


def held_out_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@1 and Pass@K [%] on the held-out problems of every training run, before and after it, and the gain.

    K is the largest number of samples a problem that all runs of a set drew; where it is 1 everywhere, Pass@1 alone.
    The gain is of Pass@1, paired by problem.
    """
    held_out = [item for item in measurements if item.held_out]
    items, budget = series(held_out), budgets(held_out)
    before = {(i.head.block, name): m for i in items if i.head.method == BASE for name, m in i.by_benchmark.items()}
    has_many = any(k > 1 for k in budget.values())
    names = ("Pass@1", "Pass@K") if has_many else ("Pass@1",)
    rows: list[TableRow] = []
    for item in items:
        for name in in_order(item.by_benchmark, BENCHMARKS) if item.head.method != BASE else ():
            sides = (before.get((item.head.block, name)), item.by_benchmark[name])
            metrics = ("pass@1", f"pass@{budget[name]}")[: len(names)]
            shares = [share_cell(side.metrics.get(metric) if side else None) for metric in metrics for side in sides]
            k = [Cell(f"{budget[name]}", float(budget[name]))] if has_many else []
            gain = points_cell(item.by_benchmark[name].metrics["gain"])
            cells = (item.head.name, seeds_cell(item, [name]), benchmark_name(name), *k, *shares, gain)
            rows.append(row_of(*cells, section=item.head.block))
    note = f"Per cent, the gain in points of Pass@1, paired by problem. In brackets: {INTERVALS}."
    return Table(
        name="held_out",
        title="Held-out problems, before and after training",
        columns=(
            *left("Method"),
            SEEDS,
            *left("Problems"),
            *(right("K") if has_many else ()),
            *(column for name in names for column in right("Before", "After", group=name)),
            *right("Gain"),
        ),
        rows=tuple(rows),
        notes=(note, *data_notes(held_out)),
    )

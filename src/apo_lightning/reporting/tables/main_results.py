"""Models × methods × benchmarks, and what training runs say of their own held-out problems."""

from collections.abc import Mapping, Sequence

from apo_lightning.reporting.averages import series_name
from apo_lightning.reporting.names import BASE, benchmark_name, in_benchmark_order
from apo_lightning.reporting.records import Cell, Column, Measurement, Row, Table
from apo_lightning.reporting.tables.cells import EMPTY, share_cell, with_best_bold
from apo_lightning.reporting.tables.columns import (
    accuracy_cells,
    accuracy_columns,
    average_cells,
    average_columns,
    gain_cells,
    gain_columns,
    reading_notes,
)
from apo_lightning.reporting.tables.series import (
    Series,
    budgets,
    common_benchmarks,
    data_notes,
    evaluated_or_held_out,
    series,
)


def main_results(measurements: Sequence[Measurement]) -> Table:
    """Pass@1 and Pass@K [%] of every method on every benchmark, and their averages, in a block for each model.

    K is a benchmark's sample budget. A model's averages are over the benchmarks that all its methods have. A run that
    departs from its method's defaults is left to the sensitivity table, unless its method has no other.

    Source: the paper's table of main results.
    """
    chosen = evaluated_or_held_out(measurements)
    everything = series(chosen)
    shown = without_variants(everything)
    benchmarks = in_benchmark_order(name for item in shown for name in item.by_benchmark)
    budget = budgets(chosen)
    common = {item.model: common_benchmarks([other for other in shown if other.model == item.model]) for item in shown}
    with_averages = any(len(names) > 1 for names in common.values())
    several_k = any(budget[name] > 1 for name in benchmarks)
    columns = [Column(name="Method", align="left")]
    columns += [column for name in benchmarks for column in accuracy_columns(name, budget[name])]
    columns += average_columns(several_k) if with_averages else []
    held_out = any(item.held_out for item in chosen)
    columns += gain_columns(benchmarks) if held_out else []
    lines = []
    for item in shown:
        cells = [label(item)]
        cells += [cell for n in benchmarks for cell in accuracy_cells(item.by_benchmark.get(n), budget[n])]
        cells += average_cells(item, common[item.model], budget, several_k) if with_averages else []
        cells += gain_cells(item, benchmarks) if held_out else []
        lines.append(Row(cells=tuple(cells), section=item.model))
    rows = with_best_bold(lines)
    notes = reading_notes(rows, held_out=held_out)
    if with_averages:
        notes.append(f"Average over the benchmarks that all methods of a model have: {_listed(common)}.")
    if hidden := len(everything) - len(shown):
        notes.append(
            f"Not shown: {hidden} with other settings than their method's defaults; see the sensitivity table."
        )
    return Table(
        name="main_results",
        title="Main results",
        columns=tuple(columns),
        rows=rows,
        notes=(*notes, *data_notes(chosen)),
    )


def held_out_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@1 [%] on the held-out problems of every training run, before and after it, and the paired difference."""
    held_out = [item for item in measurements if item.held_out]
    items = series(held_out)
    before = {(i.model, name): m for i in items if i.method == BASE for name, m in i.by_benchmark.items()}
    rows = []
    for item in items:
        for name in in_benchmark_order(item.by_benchmark) if item.method != BASE else ():
            base, after = before.get((item.model, name)), item.by_benchmark[name]
            shares = (share_cell(base.metrics["pass@1"]) if base else EMPTY, share_cell(after.metrics["pass@1"]))
            cells = (label(item), Cell(text=benchmark_name(name)), *shares, *gain_cells(item, [name]))
            rows.append(Row(cells=cells, section=item.model))
    note = "Pass@1 in per cent. In brackets: 95 % interval of the gain, paired by problem."
    return Table(
        name="held_out",
        title="Held-out problems, before and after training",
        columns=(
            *(Column(name=name, align="left") for name in ("Method", "Problems")),
            *(Column(name=name) for name in ("Before", "After", "Gain")),
        ),
        rows=tuple(rows),
        notes=(note, *data_notes(held_out)) if rows else (),
    )


def without_variants(items: Sequence[Series]) -> list[Series]:
    """Without the runs that depart from their method's defaults, where there is one that does not."""
    plain = {(item.model, item.method) for item in items if not item.settings}
    return [item for item in items if not item.settings or (item.model, item.method) not in plain]


def label(item: Series) -> Cell:
    """The method, and where its runs depart from the defaults."""
    return Cell(text=series_name(next(iter(item.by_benchmark.values()))))


def _listed(common: Mapping[str, set[str]]) -> str:
    texts = {", ".join(map(benchmark_name, in_benchmark_order(names))) or "none" for names in common.values()}
    return "; ".join(sorted(texts))

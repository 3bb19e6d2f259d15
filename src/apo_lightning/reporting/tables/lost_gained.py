"""Which problems a method solves that another never does, and the other way round."""

from collections.abc import Sequence

from apo_lightning.evaluation.records import Estimate
from apo_lightning.metrics.comparison import compare
from apo_lightning.reporting.names import BASE, METHODS, benchmark_name, in_benchmark_order
from apo_lightning.reporting.records import Cell, Column, Measurement, Row, Table
from apo_lightning.reporting.tables.cells import PER_CENT, number_cell
from apo_lightning.reporting.tables.main_results import label, without_variants
from apo_lightning.reporting.tables.series import Series, series

COMPARED_FROM = (BASE, METHODS["grpo"])
"""The two that others are held against: what training costs, and what a remedy brings back."""


def lost_gained_table(measurements: Sequence[Measurement]) -> Table:
    """Problems lost (solved at least once by the first, never by the second) and gained, and the change of Pass@K.

    From Base and from GRPO to every other method of the same model, on each benchmark that both were evaluated on. K is
    the benchmark's common sample budget; seeds are pooled, problem by problem.
    """
    items = without_variants(series([item for item in measurements if not item.held_out]))
    pairs = [(a, b) for a in items for b in items if a.model == b.model and _compared(a, b)]
    both = [
        (a, b, name) for a, b in pairs for name in in_benchmark_order(a.by_benchmark.keys() & b.by_benchmark.keys())
    ]
    comparable = [(a, b, name) for a, b, name in both if _same_problems(a.by_benchmark[name], b.by_benchmark[name])]
    notes = (
        ["Pass@K in per cent, its change in points. In brackets: 95 % interval, paired by problem."]
        if comparable
        else []
    )
    if skipped := len(both) - len(comparable):
        notes.append(f"Left out: {skipped} pairs of evaluations whose problems are not the same.")
    return Table(
        name="lost_gained",
        title="Problems lost and gained",
        columns=(
            *(Column(name=name, align="left") for name in ("From", "To", "Benchmark")),
            *(Column(name=name) for name in ("Problems", "Lost", "Gained", "K", "Change of Pass@K")),
        ),
        rows=tuple(_row(a, b, name) for a, b, name in comparable),
        notes=tuple(notes),
    )


def _compared(a: Series, b: Series) -> bool:
    return a.method in COMPARED_FROM and b.method not in (BASE, a.method)


def _same_problems(a: Measurement, b: Measurement) -> bool:
    return bool(a.problems) and {p.prompt_id for p in a.problems} == {p.prompt_id for p in b.problems}


def _row(a: Series, b: Series, name: str) -> Row:
    first, second = a.by_benchmark[name], b.by_benchmark[name]
    result = compare(first.problems, second.problems, first.num_samples)
    change = result.difference
    estimate = Estimate(value=change.mean, low=change.low, high=change.high)
    counts = (len(result.lost), len(result.gained), result.k)
    cells = (
        label(a),
        label(b),
        Cell(text=benchmark_name(name)),
        *(Cell(text=f"{count:,}", value=float(count)) for count in (result.num_problems, *counts)),
        number_cell(estimate, scale=PER_CENT, decimals=2, signed=True),
    )
    return Row(cells=cells, section=a.model)

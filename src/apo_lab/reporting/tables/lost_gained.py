"""Problems that one method solves and another does not, in both directions."""

from collections.abc import Mapping, Sequence

from apo_lab.reporting.averages import score_table
from apo_lab.reporting.names import BASE, BENCHMARKS, METHODS, benchmark_name, in_order
from apo_lab.reporting.records import Cell, Measurement, Table, TableRow, left, right, row_of
from apo_lab.reporting.tables.cells import points_cell, seeds_cell
from apo_lab.reporting.tables.series import Series, evaluated, series, without_variants
from apo_lab.statistics.seeds import seed_difference_intervals
from apo_lightning.evaluation.results import estimate_of
from apo_lightning.metrics.intervals import paired_interval

COMPARED_FROM = (BASE, METHODS["grpo"])
"""The methods that others are compared with: Base shows the cost of training, GRPO the effect of a remedy."""


def lost_gained_table(measurements: Sequence[Measurement]) -> Table:
    """Problems lost (solved in K samples of the first, not of the second) and gained, and the change of Pass@K.

    From Base and from GRPO to every other method of the same model, measured alike, on each benchmark that both were
    evaluated on. K is the benchmark's common sample budget. Of a method with several training seeds a problem counts
    with the share of seeds, as expected of one seed of each.
    """
    items = without_variants(series(evaluated(measurements)))
    pairs = [(a, b) for a in items for b in items if a.head.block == b.head.block and _compared(a, b)]
    rows = tuple(
        _row(a, b, name)
        for a, b in pairs
        for name in in_order(a.by_benchmark.keys() & b.by_benchmark.keys(), BENCHMARKS)
    )
    return Table(
        name="lost_gained",
        title="Problems lost and gained",
        columns=(
            *left("From", "To", "Benchmark"),
            *right("Seeds", "Problems", "Lost", "Gained", "K", "Change of Pass@K"),
            *left("Scope"),
        ),
        rows=rows,
        notes=(
            "Pass@K in per cent, its change in points, lost and gained as expected of one seed of each. In brackets: "
            "95 % interval, paired by problem; over training seeds too where a method has two or more; none where "
            "seeds and problems all agree. Scope: what the interval speaks of; one seed stands for its checkpoint, not "
            "for its method.",
        ),
    )


def _compared(a: Series, b: Series) -> bool:
    return a.head.method in COMPARED_FROM and b.head.method not in (BASE, a.head.method)


def _row(a: Series, b: Series, name: str) -> TableRow:
    first, second = a.by_benchmark[name], b.by_benchmark[name]
    k, policies = first.num_samples, [*first.policies, *second.policies]
    scores = score_table(policies, f"pass@{k}")
    assert scores is not None  # measurements of one block and benchmark have the same problems
    before, after = scores.tensor_split([len(first.policies)])
    if len(policies) == 2:
        change = paired_interval(before[0], after[0])
    else:
        (change,) = seed_difference_intervals(before[:, :, None], after[:, :, None])
    # Expected of one seed of each: Σ p_a·(1 − p_b) over problems, with p the mean over seeds.
    mean_a, mean_b = before.mean(0), after.mean(0)
    lost, gained = (mean_a * (1 - mean_b)).sum().item(), (mean_b * (1 - mean_a)).sum().item()
    return row_of(
        a.head.name,
        b.head.name,
        benchmark_name(name),
        f"{seeds_cell(a, [name]).text}, {seeds_cell(b, [name]).text}",
        *map(_count, (scores.shape[1], lost, gained, k)),
        points_cell(estimate_of(change)),
        _scope({a.head.method: len(before), b.head.method: len(after)}),
        section=a.head.block,
    )


def _count(count: int | float) -> Cell:
    """A whole number as such, another with a decimal."""
    return Cell(f"{count:,.0f}" if abs(count - round(count)) < 1e-9 else f"{count:,.1f}", float(count))


def _scope(num_seeds: Mapping[str, int]) -> str:
    """The scope of the interval: a method where it has several seeds, else one checkpoint of it."""
    if set(num_seeds.values()) == {1}:
        return "these two checkpoints"
    alone = [method for method, count in num_seeds.items() if count == 1 and method != BASE]
    return f"one checkpoint of {alone[0]}" if alone else "the methods"

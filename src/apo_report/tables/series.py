"""Measurements grouped for tables: seeds averaged, one sample budget a benchmark, in the paper's order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from apo_lightning.evaluation.records import Estimate
from apo_report.identity import OF_N, blocks_in_order, mean_over_benchmarks, mean_over_both, mean_over_seeds
from apo_report.names import BASE, METHODS, in_order, variant_name
from apo_report.records import Measurement
from apo_report.runs import grouped

EXACT = (
    "Exact pass@k: summed over all completions, on the run's own held-out problems; evaluations estimate it from "
    "samples, on theirs."
)
"""What exact values are."""
INTERVALS = "95 % confidence intervals over problems, and over training seeds of methods that have several"
"""What the intervals are over; those of one policy do not hold other seeds of its method."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One method of one model with one setting, measured in one way: everything measured of it, by benchmark."""

    head: Measurement
    """One of them: model, method, settings and name are those of all."""
    settings: Mapping[str, str]
    """Its settings without those that all trained policies of its block share."""
    by_benchmark: Mapping[str, Measurement]

    @property
    def label(self) -> str:
        """Its name in its block."""
        return variant_name(self.head.method, self.settings, self.head.which)


def evaluated(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The evaluations alone, without the training runs' own measurements on held-out problems."""
    return [item for item in measurements if not item.held_out]


def compared(measurements: Sequence[Measurement]) -> list[Measurement]:
    """What a sweep is compared by: evaluations, or else the runs' own held-out problems; exact values in any case."""
    sampled = evaluated(measurements) or [item for item in measurements if not item.exact]
    return [*sampled, *(item for item in measurements if item.exact)]


def budgets(measurements: Iterable[Measurement]) -> dict[str, int]:
    """K of each benchmark: the largest that every evaluation of it has samples for."""
    smallest: dict[str, int] = {}
    for item in measurements:
        smallest[item.benchmark] = min(item.num_samples, smallest.get(item.benchmark, item.num_samples))
    return smallest


def at_budget(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Every measurement with `pass@K` at the common K of its benchmark, so that a column compares equals.

    Metrics whose value depends on the number of samples, such as diversity, are left out where it is not K.
    """
    common, cut = budgets(measurements), []
    for item in measurements:
        k = common[item.benchmark]
        kept = {name: e for name, e in item.metrics.items() if item.num_samples == k or not name.startswith(OF_N)}
        at_k = {f"pass@{k}": item.pass_at_k[k - 1]} if item.pass_at_k else {}
        cut.append(replace(item, num_samples=k, metrics={**kept, **at_k}, pass_at_k=item.pass_at_k[:k]))
    return cut


def series(measurements: Sequence[Measurement]) -> list[Series]:
    """Measurements by block, method and setting, seeds averaged, models and methods in the paper's order."""
    blocks = blocks_in_order(measurements)
    methods = in_order((item.method for item in measurements), METHODS.values())

    def place(item: Measurement) -> tuple[int, int, tuple[tuple[str, str], ...], str]:
        return blocks.index(item.block), methods.index(item.method), tuple(item.settings.items()), item.which

    groups = grouped(sorted(mean_over_seeds(at_budget(measurements)), key=place), place)
    found = []
    for head, *others in groups:
        neighbours = [first for first, *_ in groups if first.block == head.block and first.method != BASE]
        shared = set.intersection(*(set(each.settings.items()) for each in neighbours)) if neighbours else set()
        own = {name: value for name, value in head.settings.items() if (name, value) not in shared}
        by_benchmark = {item.benchmark: item for item in (head, *others)}
        found.append(Series(head=head, settings=own, by_benchmark=by_benchmark))
    return found


def series_of(measurements: Sequence[Measurement], block: str, method: str) -> list[Series]:
    """The settings of one method, from what they are compared by."""
    return series([item for item in compared(measurements) if (item.block, item.method) == (block, method)])


def without_variants(items: Sequence[Series]) -> list[Series]:
    """The series with default settings, and those of methods that were run with no defaults."""
    plain = {(item.head.block, item.head.method) for item in items if not item.head.settings}
    return [item for item in items if not item.head.settings or (item.head.block, item.head.method) not in plain]


def common_benchmarks(items: Sequence[Series]) -> dict[str, set[str]]:
    """Of each block, the benchmarks that all its series have; exact values count where these are none."""
    common: dict[str, set[str]] = {}
    for block in {item.head.block for item in items}:
        own = [item.by_benchmark for item in items if item.head.block == block]
        names = set.intersection(*(set(measured) for measured in own))
        exact = {name for name in names if own[0][name].exact}
        common[block] = names - exact or exact
    return common


def average(
    item: Series, benchmarks: Iterable[str], metric: str, budget: Mapping[str, int] | None = None
) -> Estimate | None:
    """Macro-average over the benchmarks; None where one is missing or lacks the metric.

    `pass@K` is at the budget, else all samples. Half-widths of single policies add in quadrature. A training seed
    counts on all benchmarks at once.
    """
    names = sorted(benchmarks)
    measured = [item.by_benchmark[name] for name in names if name in item.by_benchmark]
    own = {each.benchmark: each.num_samples for each in measured}
    chosen = [(each, f"pass@{(budget or own)[each.benchmark]}" if metric == "pass@K" else metric) for each in measured]
    if not chosen or len(chosen) < len(names) or any(name not in each.metrics for each, name in chosen):
        return None
    if any(each.seeds for each in measured):
        return mean_over_both(chosen)
    return mean_over_benchmarks([each.metrics[name] for each, name in chosen])


def data_notes(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Notes on numbers of samples that differ, and on policies that were not averaged."""
    notes = []
    for benchmark, k in sorted(budgets(measurements).items()):
        most = max(item.num_samples for item in measurements if item.benchmark == benchmark)
        if most > k:
            notes.append(f"{benchmark}: evaluated with {k} to {most} samples a problem; pass@k is compared at {k}.")
    if any(item.exact for item in measurements):
        notes.append(f"{EXACT} Exact values have no interval.")
    if any(item.which for item in measurements):
        notes.append(
            "Not averaged: rows that name weights, as they are not different training seeds; name the folders of one "
            "in runs=, or give each a model.name of its own."
        )
    return tuple(notes)


def base_note(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """How to add the base model where the evaluations of a block have none."""
    chosen = evaluated(measurements)
    if blocks := {item.block for item in chosen} - {item.block for item in chosen if item.method == BASE}:
        how = "apo evaluate run=FOLDER checkpoint=base, with the other settings of that run's evaluation"
        return (f"Without the base model: {'; '.join(sorted(blocks))}. To add it: {how}.",)
    return ()


def unevaluated_note(measurements: Sequence[Measurement], only: Sequence[Series] = ()) -> tuple[str, ...]:
    """The settings that only their runs measured, where others have evaluations: all, or of some models' methods."""
    done = {(item.model, item.name) for item in evaluated(measurements)}
    wanted = {(item.head.model, item.head.method) for item in only}
    trained = (item for item in measurements if item.method != BASE and done)
    chosen = (item for item in trained if not only or (item.model, item.method) in wanted)
    left = dict.fromkeys(item.name for item in chosen if (item.model, item.name) not in done)
    return (f"Not evaluated: {', '.join(left)}. To add one: apo evaluate run=FOLDER.",) if left else ()

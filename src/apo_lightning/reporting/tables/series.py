"""Measurements grouped for tables: seeds averaged, one sample budget a benchmark, in the paper's order."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from apo_lightning.evaluation.records import Estimate
from apo_lightning.reporting.averages import mean_over_benchmarks, mean_over_seeds
from apo_lightning.reporting.names import in_method_order, in_model_order
from apo_lightning.reporting.records import Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One method of one model with one setting: everything measured of it, by benchmark."""

    model: str
    method: str
    settings: Mapping[str, str]
    by_benchmark: Mapping[str, Measurement]


def evaluated_or_held_out(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The evaluations; where there is none, what the training runs themselves measured on held-out problems."""
    evaluated = [item for item in measurements if not item.held_out]
    return evaluated or list(measurements)


def budgets(measurements: Iterable[Measurement]) -> dict[str, int]:
    """K of each benchmark: the largest that every evaluation of it has samples for."""
    smallest: dict[str, int] = {}
    for item in measurements:
        smallest[item.benchmark] = min(item.num_samples, smallest.get(item.benchmark, item.num_samples))
    return smallest


def at_budget(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Every measurement with `pass@K` at the common K of its benchmark, so that a column compares equals."""
    common = budgets(measurements)
    cut = []
    for item in measurements:
        k = common[item.benchmark]
        # Without a curve, as for a held-out set, there is pass@1 alone.
        at_k = {f"pass@{k}": item.pass_at_k[k - 1]} if item.pass_at_k else {}
        cut.append(replace(item, num_samples=k, metrics={**item.metrics, **at_k}, pass_at_k=item.pass_at_k[:k]))
    return cut


def series(measurements: Sequence[Measurement]) -> list[Series]:
    """Measurements by model, method and setting, seeds averaged, models and methods in the paper's order."""
    groups: dict[tuple[str, str, tuple[tuple[str, str], ...]], dict[str, Measurement]] = defaultdict(dict)
    for item in mean_over_seeds(at_budget(measurements)):
        groups[item.model, item.method, tuple(item.settings.items())][item.benchmark] = item
    models = in_model_order(model for model, _, _ in groups)
    methods = in_method_order(method for _, method, _ in groups)
    order = sorted(groups, key=lambda key: (models.index(key[0]), methods.index(key[1]), key[2]))
    return [Series(model=key[0], method=key[1], settings=dict(key[2]), by_benchmark=groups[key]) for key in order]


def common_benchmarks(items: Sequence[Series]) -> set[str]:
    """Those that all have."""
    return set.intersection(*(set(item.by_benchmark) for item in items)) if items else set()


def average(item: Series, benchmarks: Iterable[str], metric_of: Mapping[str, str]) -> Estimate | None:
    """Macro-average over the benchmarks; None where one lacks the metric. Half-widths add in quadrature."""
    estimates = [item.by_benchmark[name].metrics.get(metric_of[name]) for name in sorted(benchmarks)]
    known = [estimate for estimate in estimates if estimate is not None]
    return mean_over_benchmarks(known) if known and len(known) == len(estimates) else None


def data_notes(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """What makes numbers of one benchmark harder to compare: other problems, other numbers of samples, seeds."""
    notes = []
    for benchmark, k in sorted(budgets(measurements).items()):
        group = [item for item in measurements if item.benchmark == benchmark]
        if len({item.num_samples for item in group}) > 1:
            most = max(item.num_samples for item in group)
            notes.append(f"{benchmark}: evaluated with {k} to {most} samples a problem; pass@k is compared at {k}.")
        if len({item.data_sha256 for item in group if item.data_sha256}) > 1:
            notes.append(f"{benchmark}: NOT the same problems in every evaluation; its numbers do not compare.")
    counts: dict[tuple[object, ...], int] = defaultdict(int)
    for item in measurements:
        counts[item.model, item.method, tuple(item.settings.items()), item.benchmark] += 1
    if max(counts.values(), default=1) > 1:
        low, high = min(counts.values()), max(counts.values())
        span = f"{low}" if low == high else f"{low} to {high}"
        notes.append(
            f"Means over {span} evaluations or seeds; their intervals are averaged, which is on the safe side."
        )
    return tuple(notes)

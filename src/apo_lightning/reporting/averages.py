"""Measurements averaged: over seeds, and over benchmarks."""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from apo_lightning.evaluation.records import Estimate, ProblemCount
from apo_lightning.reporting.names import axis_name
from apo_lightning.reporting.records import Measurement


def series_name(measurement: Measurement) -> str:
    """How a row, line or point is called: the method, and where its run departs from the method's defaults.

    Example:
        >>> measurement = Measurement(model="tiny", method="APO", settings={"algo.loss.pull_coef": "0.02"},
        ...                           benchmark="aime2024", num_samples=4, metrics={})
        >>> series_name(measurement)
        'APO (β = 0.02)'
    """
    return variant_name(measurement.method, measurement.settings)


def variant_name(method: str, settings: Mapping[str, str]) -> str:
    """The same for a run: its method's name, and the settings in which it departs from the method's defaults."""
    text = ", ".join(f"{axis_name(key)} = {value}" for key, value in settings.items())
    return f"{method} ({text})" if text else method


def mean_over_seeds(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One measurement for all seeds of a policy on a benchmark: means of values and of interval ends.

    The seeds share their problems, so their errors go together; the standard deviation of a mean is at most the mean of
    the standard deviations, so averaged intervals are wide enough. Ones narrower by √seeds would not be. A metric that
    one of the seeds lacks is left out.
    """
    groups: dict[tuple[object, ...], list[Measurement]] = defaultdict(list)
    for item in measurements:
        where = tuple(item.settings.items())
        groups[item.model, item.method, where, item.benchmark, item.num_samples, item.held_out].append(item)
    return [_mean_of_group(group) for group in groups.values()]


def mean_over_benchmarks(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of estimates that share no problem: distances of the intervals' ends add in quadrature, √(Σ_b h_b²)/B.

    Example:
        Ends 0.3 and 0.4 below and above: √(0.3² + 0.4²)/2 = 0.25.

        >>> estimate = mean_over_benchmarks(
        ...     [Estimate(value=0.5, low=0.2, high=0.8), Estimate(value=0.5, low=0.1, high=0.9)])
        >>> estimate.value, round(estimate.low, 9), round(estimate.high, 9)
        (0.5, 0.25, 0.75)
    """
    count = len(estimates)
    value = math.fsum(estimate.value for estimate in estimates) / count
    below = math.hypot(*(estimate.value - estimate.low for estimate in estimates)) / count
    above = math.hypot(*(estimate.high - estimate.value for estimate in estimates)) / count
    return Estimate(value=value, low=value - below, high=value + above)


def _mean_of_group(group: Sequence[Measurement]) -> Measurement:
    names = [name for name in group[0].metrics if all(name in item.metrics for item in group)]
    metrics = {name: _mean([item.metrics[name] for item in group]) for name in names}
    curve = tuple(_mean(estimates) for estimates in zip(*(item.pass_at_k for item in group), strict=True))
    seed = group[0].seed if len(group) == 1 else ""
    problems = _pooled([item.problems for item in group])
    return replace(group[0], metrics=metrics, pass_at_k=curve, seed=seed, problems=problems)


def _pooled(parts: Sequence[Sequence[ProblemCount]]) -> tuple[ProblemCount, ...]:
    """Counts of all seeds, summed by problem; none where the seeds were not measured on the same problems."""
    tables = [{problem.prompt_id: problem for problem in part} for part in parts]
    if any(table.keys() != tables[0].keys() for table in tables):
        return ()
    return tuple(
        ProblemCount(
            prompt_id=name,
            num_samples=sum(table[name].num_samples for table in tables),
            num_correct=sum(table[name].num_correct for table in tables),
        )
        for name in tables[0]
    )


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    count = len(estimates)
    return Estimate(
        value=math.fsum(estimate.value for estimate in estimates) / count,
        low=math.fsum(estimate.low for estimate in estimates) / count,
        high=math.fsum(estimate.high for estimate in estimates) / count,
    )

"""Means of measurements over training seeds and over benchmarks, with their intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.reporting.axes import grouped
from apo_lab.reporting.identity import problem_scores
from apo_lab.reporting.records import Measurement, bare
from apo_lab.statistics.seeds import seed_mean_intervals
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Estimate
from apo_lightning.evaluation.results import SHARES, estimate_of, score_range


def mean_over_seeds(measurements: Iterable[Measurement]) -> list[Measurement]:
    """One measurement for all training seeds of a method on a benchmark.

    Values are means over seeds with equal weights; intervals are `statistics.seeds.seed_mean_intervals`, over seeds and
    problems. Where a seed's scores of each problem are not known, or the problems are not the same, there is a mean and
    no interval. A metric that one of the seeds lacks is left out.

    Raises:
        ConfigError: what would be averaged are not different training seeds measured alike.
    """

    def what(item: Measurement) -> tuple[object, ...]:
        where = tuple(item.settings.items()), tuple(item.apart.items()), item.which
        return item.model, item.method, where, item.benchmark, item.num_samples, item.held_out

    # Seeds by number: 9 before 10.
    groups = grouped(sorted(measurements, key=lambda item: (len(item.seed), item.seed)), what)
    return [_mean_of_group(group) for group in groups]


def mean_over_benchmarks(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of estimates that share no problem and no seed: distances of the ends add in quadrature, √(Σ_b h_b²)/B.

    Ends 0.3 and 0.4 away from their values: √(0.3² + 0.4²)/2 = 0.25.
    """
    count, mean = len(estimates), _bare_mean(estimates).value
    below = math.hypot(*(estimate.value - estimate.low for estimate in estimates)) / count
    above = math.hypot(*(estimate.high - estimate.value for estimate in estimates)) / count
    return Estimate(value=mean, low=mean - below, high=mean + above)


def mean_over_both(measured: Sequence[tuple[Measurement, str]]) -> Estimate:
    """Mean over benchmarks of a mean over seeds, each with the metric to take of it.

    Without an interval where scores problem by problem are not known, or the benchmarks have not the same seeds.
    """
    tables = [score_table(item.policies, name) for item, name in measured]
    known = [table for table in tables if table is not None]
    seeds = {tuple(policy.seed for policy in item.policies) for item, _ in measured}
    if len(known) < len(tables) or len(seeds) > 1:
        return _bare_mean([item.metrics[name] for item, name in measured])
    name = measured[0][1]
    return _seed_means({name: known})[name]


def score_table(policies: Sequence[Measurement], metric: str) -> Float[Tensor, "policies problems"] | None:
    """Each policy's score on each problem, matched by problem id; None where they are not known or the ids differ."""
    rows = [_by_problem(policy, metric) for policy in policies]
    if not all(rows) or any(row.keys() != rows[0].keys() for row in rows):
        return None
    return torch.tensor([[row[name] for name in rows[0]] for row in rows], dtype=torch.float64)


def _by_problem(policy: Measurement, metric: str) -> dict[str, float]:
    """Score by problem id; empty where it is not known."""
    values = policy.by_problem.get(metric, ())
    if metric.startswith("pass@") and policy.problems:
        values = problem_scores(policy.problems, [int(metric.removeprefix("pass@"))])[:, 0].tolist()
    names = [problem.prompt_id for problem in policy.problems]
    return dict(zip(names, values, strict=True)) if values else {}


def _mean_of_group(group: Sequence[Measurement]) -> Measurement:
    first = group[0]
    if len(group) == 1:
        return first
    if len({item.seed for item in group} - {""}) < len(group) or any(i.sampling != first.sampling for i in group):
        raise ConfigError(
            f"{first.name} on {first.benchmark}: {len(group)} measurements of one name that are not training seeds "
            "measured alike: none are averaged; name fewer folders in runs="
        )
    curve = _mean_curve(group)
    metrics = {f"pass@{k}": estimate for k, estimate in enumerate(curve, start=1)}
    names = [name for name in first.metrics if all(name in item.metrics for item in group)]
    tables = {name: score_table(group, name) for name in names if name not in metrics}
    metrics |= _seed_means({name: [table] for name, table in tables.items() if table is not None})
    metrics |= {name: _bare_mean([i.metrics[name] for i in group]) for name, table in tables.items() if table is None}
    kept = {name: metrics[name] for name in names}
    means = {"metrics": kept, "pass_at_k": curve, "problems": (), "by_problem": {}}
    return replace(first, seed="", weights="", seeds=tuple(group), **means)


def _mean_curve(group: Sequence[Measurement]) -> tuple[Estimate, ...]:
    """pass@k over seeds at every k that all have."""
    count = min(len(item.pass_at_k) for item in group)
    ids = [[problem.prompt_id for problem in item.problems] for item in group]
    if count and ids[0] and all(names == ids[0] for names in ids):
        curves = torch.stack([problem_scores(item.problems, range(1, count + 1)) for item in group])
        return tuple(estimate_of(interval) for interval in seed_mean_intervals([curves]))
    return tuple(_bare_mean([item.pass_at_k[place] for item in group]) for place in range(count))


def _seed_means(tables: Mapping[str, Sequence[Float[Tensor, "seeds _"]]]) -> dict[str, Estimate]:
    """The mean over seeds and benchmarks of each metric."""
    found = {}
    for name, of_benchmarks in tables.items():
        # A score that is no share has no natural bound: an unseen problem is as far off as the farthest one seen.
        lowest, highest = (0.0, 1.0) if name.startswith(SHARES) else (-math.inf, math.inf)
        columns = [table[:, :, None] for table in of_benchmarks]
        (interval,) = seed_mean_intervals(columns, lowest=lowest, highest=highest)
        least, most = score_range(name)
        found[name] = Estimate(value=interval.mean, low=max(least, interval.low), high=min(most, interval.high))
    return found


def _bare_mean(estimates: Sequence[Estimate]) -> Estimate:
    return bare(math.fsum(estimate.value for estimate in estimates) / len(estimates))

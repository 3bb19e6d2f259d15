"""Decides which measurements are one, which are training seeds of one method, and which stay separate; their means.

The weights identify a policy; policy, problems and sampling settings identify a measurement.
"""

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.identity import sha256_of
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Estimate, ProblemCount
from apo_lightning.evaluation.results import SHARES, estimate_of, score_range
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import Interval, mean_intervals
from apo_report.names import MODELS, in_order
from apo_report.records import Measurement, bare
from apo_report.runs import grouped, value_place
from apo_report.statistics.seeds import mean_of_intervals, seed_mean_intervals

OF_ALL_BENCHMARKS = ("temperature", "top-p", "engine", "precision", "stop tokens")
"""Settings of all benchmarks of a model: where one benchmark differs in them, all are labelled."""
OF_N = ("diversity", "avg@", "maj@")
"""Metrics whose value depends on the number of samples a problem."""


def resolved(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The measurements, each policy once for each way of measuring it, and labelled where they must not be averaged.

    - The same weights, problems and settings: one measurement, that with the most samples.
    - Other settings or problems: `apart` names those in which measurements of a model, or of a benchmark, differ.
    - Other weights under one name: seeds of one method if every one has a training seed of its own; else `which` names
      the weights of each.
    """
    groups = grouped(measurements, lambda i: (_method(i), i.weights, i.benchmark, tuple(sorted(i.sampling.items()))))
    single = [max(group, key=lambda item: item.num_samples) for group in groups]
    policies: dict[Hashable, set[tuple[str, str]]] = defaultdict(set)
    values: dict[Hashable, set[str]] = defaultdict(set)
    for item in single:
        policies[_method(item)].add((item.seed, item.weights))
        for name, value in item.sampling.items():
            values[_where(item, name)].add(value)

    def labelled(item: Measurement) -> Measurement:
        seeds = [seed for seed, _ in policies[_method(item)]]
        is_ambiguous = len(seeds) > 1 and ("" in seeds or len(set(seeds)) < len(seeds))
        apart = {name: value for name, value in item.sampling.items() if len(values[_where(item, name)]) > 1}
        return replace(item, apart=apart, which=f"weights {short(item.weights)}" if is_ambiguous else "")

    return tuple(map(labelled, single))


def short_hash(text: str) -> str:
    """The first digits of a text's SHA-256, to tell two long texts apart."""
    return short(sha256_of([text.encode()]))


def short(identity: str) -> str:
    """The first digits of a SHA-256; any other text as it is."""
    return identity[:8] if re.fullmatch("[0-9a-f]{64}", identity) else identity


def problem_scores(problems: Sequence[ProblemCount], ks: Sequence[int]) -> Float[Tensor, "problems ks"]:
    """pass@k of each problem."""
    drawn, correct = (torch.tensor([getattr(p, name) for p in problems]) for name in ("num_samples", "num_correct"))
    return pass_at_k_curve(drawn, correct, ks)


def counted(problems: Sequence[ProblemCount]) -> tuple[Estimate, ...]:
    """pass@k for every k up to the samples a problem, with intervals over problems."""
    scores = problem_scores(problems, range(1, problems[0].num_samples + 1))
    return tuple(estimate_of(interval) for interval in mean_intervals(scores))


def blocks_in_order(items: Sequence[Measurement]) -> list[str]:
    """The blocks of some measurements: models in the paper's order, each one's settings by value."""
    models = in_order((item.model for item in items), MODELS.values())

    def place(item: Measurement) -> tuple[int, list[tuple[str, tuple[bool, float, str]]]]:
        return models.index(item.model), [(name, value_place(value)) for name, value in item.apart.items()]

    ordered = sorted({item.block: item for item in items}.values(), key=place)
    return [item.block for item in ordered]


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
    """`statistics.seeds.mean_of_intervals`."""
    return estimate_of(mean_of_intervals([Interval(mean=e.value, low=e.low, high=e.high) for e in estimates]))


def mean_over_both(measured: Sequence[tuple[Measurement, str]]) -> Estimate:
    """Mean over benchmarks of a mean over seeds, each with the metric to take of it.

    Without an interval where scores problem by problem are not known, or the benchmarks have not the same seeds.
    """
    tables = score_tables(measured)
    return _seed_mean(measured[0][1], tables) if tables else _bare_mean([item.metrics[name] for item, name in measured])


def score_tables(measured: Sequence[tuple[Measurement, str]]) -> list[Float[Tensor, "policies problems"]]:
    """The `score_table` of each benchmark; none where one is not known, or the benchmarks have not the same seeds."""
    tables = [score_table(item.policies, name) for item, name in measured]
    seeds = {tuple(policy.seed for policy in item.policies) for item, _ in measured}
    known = [table for table in tables if table is not None]
    return known if len(known) == len(tables) and len(seeds) == 1 else []


def score_table(policies: Sequence[Measurement], metric: str) -> Float[Tensor, "policies problems"] | None:
    """Each policy's score on each problem, matched by problem id; None where they are not known or the ids differ."""
    rows = [_by_problem(policy, metric) for policy in policies]
    if not all(rows) or any(row.keys() != rows[0].keys() for row in rows):
        return None
    return torch.tensor([[row[name] for name in rows[0]] for row in rows], dtype=torch.float64)


def _method(item: Measurement) -> Hashable:
    return item.model, item.method, tuple(item.settings.items()), item.held_out


def _where(item: Measurement, name: str) -> Hashable:
    """What is measured alike where it has one value of a setting: a model, or one of its benchmarks."""
    return name, item.model, item.held_out, None if name in OF_ALL_BENCHMARKS else item.benchmark


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
    of_curve = {f"pass@{k}": estimate for k, estimate in enumerate(curve, start=1)}
    names = [name for name in first.metrics if all(name in item.metrics for item in group)]
    means = {name: of_curve.get(name) or _mean_of_metric(group, name) for name in names}
    gone = {"seed": "", "weights": "", "problems": (), "by_problem": {}}
    return replace(first, metrics=means, pass_at_k=curve, seeds=tuple(group), **gone)


def _mean_of_metric(group: Sequence[Measurement], name: str) -> Estimate:
    table = score_table(group, name)
    return _bare_mean([item.metrics[name] for item in group]) if table is None else _seed_mean(name, [table])


def _mean_curve(group: Sequence[Measurement]) -> tuple[Estimate, ...]:
    """pass@k over seeds at every k that all have."""
    count = min(len(item.pass_at_k) for item in group)
    ids = [[problem.prompt_id for problem in item.problems] for item in group]
    if count and ids[0] and all(names == ids[0] for names in ids):
        curves = torch.stack([problem_scores(item.problems, range(1, count + 1)) for item in group])
        return tuple(estimate_of(interval) for interval in seed_mean_intervals([curves]))
    return tuple(_bare_mean([item.pass_at_k[place] for item in group]) for place in range(count))


def _seed_mean(name: str, of_benchmarks: Sequence[Float[Tensor, "seeds _"]]) -> Estimate:
    """The mean of a metric over seeds and benchmarks."""
    least, most = score_range(name)
    # What is no share of samples has an unseen problem as far off as the farthest one seen; a gain that is the same on
    # all problems, at ±1, as in `paired_intervals`.
    agree = name == "gain" and all(len(set(table.mean(0).tolist())) == 1 for table in of_benchmarks)
    lowest, highest = (least, most) if agree or name.startswith(SHARES) else (-math.inf, math.inf)
    columns = [table[:, :, None] for table in of_benchmarks]
    (interval,) = seed_mean_intervals(columns, lowest=lowest, highest=highest)
    return Estimate(value=interval.mean, low=max(least, interval.low), high=min(most, interval.high))


def _bare_mean(estimates: Sequence[Estimate]) -> Estimate:
    return bare(math.fsum(estimate.value for estimate in estimates) / len(estimates))

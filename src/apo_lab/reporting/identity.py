"""Decides which measurements are one, which are training seeds of one method, and which stay separate; their means.

The weights identify a policy; policy, problems and sampling settings identify a measurement.
"""

import math
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.reporting.names import MODELS, in_order
from apo_lab.reporting.records import Measurement, bare
from apo_lab.reporting.runs import grouped, value_place
from apo_lab.statistics.seeds import seed_mean_intervals
from apo_lightning.common.identity import sha256_of
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import Estimate, ProblemCount
from apo_lightning.evaluation.results import SHARES, estimate_of, score_range
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import mean_intervals

OF_ALL_BENCHMARKS = ("temperature", "top-p", "engine", "precision", "stop tokens")
"""Settings of all benchmarks of a model: where one benchmark differs in them, all are labelled."""
OF_N = ("diversity", "avg@", "maj@")
"""Metrics whose value depends on the number of samples a problem."""
HASH_LETTERS = 8


def resolved(measurements: Iterable[Measurement], runs: Mapping[str, str] | None = None) -> tuple[Measurement, ...]:
    """The measurements, each policy once for each way of measuring it, and labelled where they must not be averaged.

    - The same weights, problems and settings: one measurement, that with the most samples.
    - Other settings or problems: `apart` names them.
    - Other weights under one name: seeds of one method if every one has a training seed of its own; else `which` names
      the run of each as `runs` does, from weights to name, or the weights.
    """
    groups = grouped(measurements, _same_measurement)
    single = [max(group, key=lambda item: item.num_samples) for group in groups]
    return tuple(_weights_named(_settings_named(single), runs or {}))


def short_hash(text: str) -> str:
    """The first digits of a text's SHA-256, to tell two long texts apart."""
    return sha256_of([text.encode()])[:HASH_LETTERS]


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


def _same_method(item: Measurement) -> Hashable:
    return item.model, item.method, tuple(item.settings.items()), item.held_out


def _same_measurement(item: Measurement) -> Hashable:
    # Where the weights are not known, every measurement is a policy of its own.
    policy = item.weights or id(item)
    return _same_method(item), policy, item.benchmark, tuple(sorted(item.sampling.items()))


def _settings_named(items: Sequence[Measurement]) -> list[Measurement]:
    """`apart`: the settings in which measurements of one model, or of one of its benchmarks, differ."""
    found: dict[Hashable, set[str]] = defaultdict(set)
    for item in items:
        for name, value in item.sampling.items():
            found[_where(item, name)].add(value)
    return [
        replace(
            item, apart={name: value for name, value in item.sampling.items() if len(found[_where(item, name)]) > 1}
        )
        for item in items
    ]


def _where(item: Measurement, name: str) -> Hashable:
    return name, item.model, item.held_out, None if name in OF_ALL_BENCHMARKS else item.benchmark


def _weights_named(items: Sequence[Measurement], runs: Mapping[str, str]) -> list[Measurement]:
    """`which`: where the policies of one name are not told apart by training seeds of their own."""
    policies: dict[Hashable, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for item in items:
        policies[_same_method(item)][item.seed].add(item.weights)

    def ambiguous(of_seed: Mapping[str, set[str]]) -> bool:
        num_policies = sum(len(weights) for weights in of_seed.values())
        return num_policies > 1 and ("" in of_seed or num_policies > len(of_seed))

    return [
        replace(
            item, which=runs.get(item.weights) or re.sub("([0-9a-f]{8})[0-9a-f]{56}", r"\1", f"weights {item.weights}")
        )
        if ambiguous(policies[_same_method(item)])
        else item
        for item in items
    ]


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
        least, most = score_range(name)
        # What is no share of samples has an unseen problem as far off as the farthest one seen; a gain that is the
        # same on all problems, at ±1, as in `paired_intervals`.
        agree = name == "gain" and all(len(set(table.mean(0).tolist())) == 1 for table in of_benchmarks)
        is_bounded = agree or name.startswith(SHARES)
        lowest, highest = (least, most) if is_bounded else (-math.inf, math.inf)
        columns = [table[:, :, None] for table in of_benchmarks]
        (interval,) = seed_mean_intervals(columns, lowest=lowest, highest=highest)
        found[name] = Estimate(value=interval.mean, low=max(least, interval.low), high=min(most, interval.high))
    return found


def _bare_mean(estimates: Sequence[Estimate]) -> Estimate:
    return bare(math.fsum(estimate.value for estimate in estimates) / len(estimates))

"""Decides which measurements are one, which are training seeds of one method, and which stay separate.

The weights identify a policy; policy, problems and sampling settings identify a measurement.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from apo_lab.reporting.axes import value_place
from apo_lab.reporting.names import in_model_order
from apo_lab.reporting.records import Measurement
from apo_lightning.evaluation.records import Estimate, ProblemCount
from apo_lightning.evaluation.results import estimate_of, reported_k, score_interval
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import mean_intervals

OF_ALL_BENCHMARKS = ("temperature", "top-p", "engine", "precision", "stop tokens")
"""Settings of all benchmarks of a model: where one benchmark differs in them, all are labelled."""
OF_N = ("diversity", "avg@", "maj@")
"""Metrics whose value depends on the number of samples a problem."""
HASH_LETTERS = 8


def resolved(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The measurements, each policy once for each way of measuring it, and labelled where they must not be averaged.

    - The same weights, problems and settings: one measurement. With the same sampling seed the one with the most
      samples stands for all, since a sample's seed does not depend on how many there are; with other sampling seeds
      the samples are pooled.
    - Other settings or problems: `apart` names them.
    - Other weights under one name: seeds of one method if every one has a training seed of its own; else `which` names
      the weights of each.
    """
    single = [_one(group) for group in _grouped(measurements, _same_measurement)]
    return tuple(_weights_named(_settings_named(single)))


def policy_name(weights: str) -> str:
    """The name of a policy that has no other: `weights 3f9a1c2b`."""
    return f"weights {weights[:HASH_LETTERS] if re.fullmatch('[0-9a-f]{64}', weights) else weights}"


def short_hash(text: str) -> str:
    """The first digits of a text's SHA-256, to tell two long texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LETTERS]


def depends_on_n(metric: str) -> bool:
    """Whether a metric's value depends on the number of samples a problem."""
    return metric.startswith(OF_N)


def _same_method(item: Measurement) -> Hashable:
    return item.model, item.method, tuple(item.settings.items()), item.held_out


def _same_measurement(item: Measurement) -> Hashable:
    # Where the weights are not known, every measurement is a policy of its own.
    policy = item.weights or id(item)
    return _same_method(item), policy, item.benchmark, tuple(sorted(item.sampling.items()))


def _grouped(items: Iterable[Measurement], key: Callable[[Measurement], Hashable]) -> list[list[Measurement]]:
    groups: dict[Hashable, list[Measurement]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def _one(group: Sequence[Measurement]) -> Measurement:
    by_sampling_seed = _grouped(group, lambda item: item.sampling_seeds)
    kept = [max(same, key=lambda item: item.num_samples) for same in by_sampling_seed]
    first = kept[0] if len(kept) == 1 else _pooled(kept)
    return replace(first, num_repeats=len(group) - len(kept))


def _pooled(parts: Sequence[Measurement]) -> Measurement:
    """All samples of one policy as if they were drawn at once; metrics that need more than counts are left out."""
    seeds = tuple(seed for part in parts for seed in part.sampling_seeds)
    num_samples = sum(part.num_samples for part in parts)
    counts = [{problem.prompt_id: problem for problem in part.problems} for part in parts]
    if not counts[0] or any(table.keys() != counts[0].keys() for table in counts):
        return replace(_bare_mean(parts), sampling_seeds=seeds)
    problems = tuple(
        ProblemCount(
            prompt_id=name,
            num_samples=sum(table[name].num_samples for table in counts),
            num_correct=sum(table[name].num_correct for table in counts),
        )
        for name in counts[0]
    )
    drawn, correct = (torch.tensor([getattr(p, name) for p in problems]) for name in ("num_samples", "num_correct"))
    intervals = mean_intervals(pass_at_k_curve(drawn, correct, range(1, num_samples + 1)))
    curve = tuple(estimate_of(interval) for interval in intervals)
    by_problem = _pooled_scores(parts, num_samples)
    metrics = {f"pass@{k}": curve[k - 1] for k in reported_k(num_samples)}
    for name, values in by_problem.items():
        metrics[name] = estimate_of(score_interval(name, torch.tensor(values, dtype=torch.float64)))
    return replace(
        parts[0],
        num_samples=num_samples,
        sampling_seeds=seeds,
        metrics=metrics,
        pass_at_k=curve,
        problems=problems,
        by_problem=by_problem,
    )


def _pooled_scores(parts: Sequence[Measurement], num_samples: int) -> dict[str, tuple[float, ...]]:
    """Each problem's mean over all samples, of the metrics that are such means."""
    order = [problem.prompt_id for problem in parts[0].problems]
    if any([problem.prompt_id for problem in part.problems] != order for part in parts):
        return {}
    names = [n for n in parts[0].by_problem if not depends_on_n(n) and all(n in part.by_problem for part in parts)]
    return {
        name: tuple(
            sum(part.num_samples * part.by_problem[name][place] for part in parts) / num_samples
            for place in range(len(order))
        )
        for name in names
    }


def _bare_mean(parts: Sequence[Measurement]) -> Measurement:
    """Means of the parts without an interval, for measurements that have no counts per problem."""
    total = sum(part.num_samples for part in parts)
    names = [name for name in parts[0].metrics if all(name in part.metrics for part in parts)]
    means = {
        name: sum(part.num_samples * part.metrics[name].value for part in parts) / total
        for name in names
        if name == "pass@1" or not name.startswith(("pass@", *OF_N))
    }
    metrics = {name: Estimate(value=mean, low=float("nan"), high=float("nan")) for name, mean in means.items()}
    return replace(parts[0], num_samples=total, metrics=metrics, pass_at_k=(), problems=(), by_problem={})


def _settings_named(items: Sequence[Measurement]) -> list[Measurement]:
    """`apart`: the settings in which measurements of one model, or of one of its benchmarks, differ."""
    found: dict[Hashable, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for item in items:
        for name, value in item.sampling.items():
            found[_where(item, name)][name].add(value)

    def differs(item: Measurement, name: str) -> bool:
        return len(found[_where(item, name)][name]) > 1

    return [
        replace(item, apart={name: value for name, value in item.sampling.items() if differs(item, name)})
        for item in items
    ]


def _where(item: Measurement, name: str) -> Hashable:
    return item.model, item.held_out, None if name in OF_ALL_BENCHMARKS else item.benchmark


def _weights_named(items: Sequence[Measurement]) -> list[Measurement]:
    """`which`: where the policies of one name are not told apart by training seeds of their own."""
    policies: dict[Hashable, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for item in items:
        policies[_same_method(item)][item.seed].add(item.weights)

    def ambiguous(of_seed: Mapping[str, set[str]]) -> bool:
        num_policies = sum(len(weights) for weights in of_seed.values())
        return num_policies > 1 and ("" in of_seed or num_policies > len(of_seed))

    return [
        replace(item, which=policy_name(item.weights)) if ambiguous(policies[_same_method(item)]) else item
        for item in items
    ]


def blocks_in_order(items: Sequence[Measurement]) -> list[str]:
    """The blocks of some measurements: models in the paper's order, each one's settings by value."""
    models = in_model_order(item.model for item in items)

    def place(item: Measurement) -> tuple[int, list[tuple[str, tuple[bool, float, str]]]]:
        return models.index(item.model), [(name, value_place(value)) for name, value in item.apart.items()]

    ordered = sorted({item.block: item for item in items}.values(), key=place)
    return [item.block for item in ordered]

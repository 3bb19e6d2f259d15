"""Decides which measurements are one, which are training seeds of one method, and which stay separate.

The weights identify a policy; policy, problems and sampling settings identify a measurement.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.reporting.axes import grouped, value_place
from apo_lab.reporting.names import MODELS, in_order
from apo_lab.reporting.records import Measurement
from apo_lightning.evaluation.records import Estimate, ProblemCount
from apo_lightning.evaluation.results import estimate_of
from apo_lightning.metrics.functional import pass_at_k_curve
from apo_lightning.metrics.intervals import mean_intervals

OF_ALL_BENCHMARKS = ("temperature", "top-p", "engine", "precision", "stop tokens")
"""Settings of all benchmarks of a model: where one benchmark differs in them, all are labelled."""
OF_N = ("diversity", "avg@", "maj@")
"""Metrics whose value depends on the number of samples a problem."""
HASH_LETTERS = 8


def resolved(measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
    """The measurements, each policy once for each way of measuring it, and labelled where they must not be averaged.

    - The same weights, problems and settings: one measurement, that with the most samples.
    - Other settings or problems: `apart` names them.
    - Other weights under one name: seeds of one method if every one has a training seed of its own; else `which` names
      the weights of each.
    """
    groups = grouped(measurements, _same_measurement)
    single = [max(group, key=lambda item: item.num_samples) for group in groups]
    return tuple(_weights_named(_settings_named(single)))


def short_hash(text: str) -> str:
    """The first digits of a text's SHA-256, to tell two long texts apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:HASH_LETTERS]


def weights_name(weights: str) -> str:
    """The first digits of the hash of weights; what else tells them from others, as it is.

    Example:
        >>> weights_name("3f9a1c2b" * 8), weights_name("of meta-llama/Llama-3.2-3B-Instruct")
        ('3f9a1c2b', 'of meta-llama/Llama-3.2-3B-Instruct')
    """
    return weights[:HASH_LETTERS] if re.fullmatch("[0-9a-f]{64}", weights) else weights


def problem_scores(problems: Sequence[ProblemCount], ks: Sequence[int]) -> Float[Tensor, "problems ks"]:
    """pass@k of each problem."""
    drawn, correct = (torch.tensor([getattr(p, name) for p in problems]) for name in ("num_samples", "num_correct"))
    return pass_at_k_curve(drawn, correct, ks)


def counted(problems: Sequence[ProblemCount]) -> tuple[Estimate, ...]:
    """pass@k for every k up to the samples a problem, with intervals over problems."""
    scores = problem_scores(problems, range(1, problems[0].num_samples + 1))
    return tuple(estimate_of(interval) for interval in mean_intervals(scores))


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


def _weights_named(items: Sequence[Measurement]) -> list[Measurement]:
    """`which`: where the policies of one name are not told apart by training seeds of their own."""
    policies: dict[Hashable, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for item in items:
        policies[_same_method(item)][item.seed].add(item.weights)

    def ambiguous(of_seed: Mapping[str, set[str]]) -> bool:
        num_policies = sum(len(weights) for weights in of_seed.values())
        return num_policies > 1 and ("" in of_seed or num_policies > len(of_seed))

    return [
        replace(item, which=f"weights {weights_name(item.weights)}")
        if ambiguous(policies[_same_method(item)])
        else item
        for item in items
    ]


def blocks_in_order(items: Sequence[Measurement]) -> list[str]:
    """The blocks of some measurements: models in the paper's order, each one's settings by value."""
    models = in_order((item.model for item in items), MODELS.values())

    def place(item: Measurement) -> tuple[int, list[tuple[str, tuple[bool, float, str]]]]:
        return models.index(item.model), [(name, value_place(value)) for name, value in item.apart.items()]

    ordered = sorted({item.block: item for item in items}.values(), key=place)
    return [item.block for item in ordered]

"""Statistics of held-out accuracy and of per-token numbers: pure functions."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError

RESAMPLED_VALUES_AT_ONCE = 2**22
"""Bounds the memory of a bootstrap, whatever the number of problems."""


def pass_at_k(
    num_samples: Int[Tensor, "*problems"], num_correct: Int[Tensor, "*problems"], k: int
) -> Float[Tensor, "*problems"]:
    """The probability that at least one of k samples, drawn without replacement from the n at hand, is correct.

        pass@k = 1 − C(n−c, k)/C(n, k) = 1 − Π_{j<k} (n − c − j)/(n − j)

    Unbiased, and less noisy than "any of the first k"; drawing with replacement would be biased.

    Source: Chen et al. 2021 (Codex), Eq. 1.

    Args:
        num_samples: n of each problem.
        num_correct: c of each problem, 0 ≤ c ≤ n.
        k: 1 ≤ k ≤ n.

    Returns:
        pass@k of each problem in [0, 1], float64; pass@1 is c/n.

    Raises:
        ConfigError: k or a count is out of range.

    Example:
        Of the 6 pairs among 4 samples, 3 miss the one correct sample.

        >>> pass_at_k(torch.tensor([4]), torch.tensor([1]), k=2)
        tensor([0.5000], dtype=torch.float64)
    """
    if k < 1 or bool((num_samples < k).any()):
        fewest = int(num_samples.min()) if num_samples.numel() else 0
        raise ConfigError(f"pass@{k} of {fewest} samples: k must lie between 1 and the number of samples a problem")
    if bool(((num_correct < 0) | (num_correct > num_samples)).any()):
        raise ConfigError("pass@k: a problem counts more correct samples than samples, or fewer than 0")
    samples, wrong = num_samples.double(), (num_samples - num_correct).double()
    all_wrong = torch.ones_like(samples)
    for drawn in range(k):
        all_wrong *= (wrong - drawn) / (samples - drawn)  # 0 once k exceeds the wrong ones, and stays 0
    return 1 - all_wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over problems, and where it would likely lie with other problems of the same kind."""

    mean: float
    low: float
    high: float
    exact: bool = False
    """True: all problems agree, resampling says nothing, and an exact bound stands in for it."""


def bootstrap_interval(
    values: Float[Tensor, "problems"],
    *,
    lowest: float = 0.0,
    highest: float = 1.0,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of the mean over problems.

    Where all values are equal the bootstrap has zero width. The exact bound then: had a share q of problems another
    value, all P would agree with probability (1 − q)^P, so q ≤ 1 − (1 − confidence)^(1/P) at that confidence; these
    problems have any value in [lowest, highest].

    Args:
        values: one number a problem.
        lowest: the least a problem's value can be.
        highest: the largest it can be.
        confidence: in (0, 1).
        num_resamples: of the problems, with replacement.
        seed: of a generator of its own; the global one is left alone.

    Raises:
        ConfigError: there are no problems, or `confidence` is not in (0, 1).

    Example:
        Ten of ten solved does not mean that all are: 1 − 0.05^(1/10) = 0.26.

        >>> interval = bootstrap_interval(torch.ones(10))
        >>> round(interval.low, 2), interval.high, interval.exact
        (0.74, 1.0, True)
    """
    if len(values) == 0:
        raise ConfigError("a confidence interval over 0 problems: there is nothing to resample")
    if not 0 < confidence < 1:
        raise ConfigError(f"confidence is {confidence}: give a value between 0 and 1, such as 0.95")
    values = values.double().cpu()
    mean = values.mean().item()
    if bool((values == values[0]).all()):
        mean = values[0].item()
        others = 1 - (1 - confidence) ** (1 / len(values))
        return Interval(
            mean=mean, low=mean - others * (mean - lowest), high=mean + others * (highest - mean), exact=True
        )
    means = _resampled_means(values, num_resamples, seed)
    tail = (1 - confidence) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(mean=mean, low=low, high=high)


def _resampled_means(values: Float[Tensor, "problems"], num_resamples: int, seed: int) -> Float[Tensor, "resamples"]:
    generator = torch.Generator().manual_seed(seed)
    step = max(1, RESAMPLED_VALUES_AT_ONCE // len(values))
    means = [
        values[torch.randint(len(values), (min(step, num_resamples - start), len(values)), generator=generator)].mean(1)
        for start in range(0, num_resamples, step)
    ]
    return torch.cat(means)


def paired_interval(
    before: Float[Tensor, "problems"],
    after: Float[Tensor, "problems_after"],
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """By how much `after` beats `before` on the same problems; paired, so the problems' difficulty cancels.

    Args:
        before: one number in [0, 1] a problem.
        after: the same problems in the same order.
        confidence: in (0, 1).
        num_resamples: of the problems.
        seed: of a generator of its own.

    Raises:
        ConfigError: the two differ in length, or as in `bootstrap_interval`.

    Example:
        >>> paired_interval(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 0.5])).mean
        0.25
    """
    if len(before) != len(after):
        raise ConfigError(
            f"{len(before)} problems before and {len(after)} after: a paired interval needs the same ones"
        )
    return bootstrap_interval(
        after.double() - before.double(),
        lowest=-1.0,
        highest=1.0,
        confidence=confidence,
        num_resamples=num_resamples,
        seed=seed,
    )

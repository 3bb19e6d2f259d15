"""Confidence intervals of a mean over problems, calibrated for small and nearly solved sets."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError

CONFIDENCE = 0.95
NUM_RESAMPLES = 10_000
"""Determines the ends of an interval to about 0.03 standard errors."""
WEIGHTS_AT_ONCE = 2**22
"""Bounds the memory of the resampling for any number of problems."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over problems and its confidence interval."""

    mean: float
    low: float
    high: float


def mean_intervals(
    values: Float[Tensor, "problems columns"], *, lowest: float = 0.0, highest: float = 1.0
) -> list[Interval]:
    """95 % confidence interval of each column's mean over problems: a Bayesian bootstrap with half an unseen problem.

    A plain bootstrap resamples the given problems only: where 40 of 40 are solved its interval is a point. So each end
    is resampled with half a problem of the worst (or best) possible score in addition:

        low  = quantile_{0.025} of (Σ_i w_i x_i + u·lowest) / (Σ_i w_i + u)
        high = quantile_{0.975} of (Σ_i w_i x_i + u·highest) / (Σ_i w_i + u)
        w_i ~ Gamma(1), u ~ Gamma(1/2), independent

    For an unbounded score, the unseen problem is as far from the mean as the farthest observed one. Where all problems
    agree, the spread is unknown, and the interval reaches to that infinite end.

    All columns share their weights, so a whole pass@k curve costs one matrix product.
    `benchmarks/accuracy/intervals.py` measures how often the intervals contain the true mean.

    Source: Rubin 1981, "The Bayesian bootstrap", for u = 0; Gaffke 2005 and Learned-Miller and Thomas 2019 ("A new
        confidence interval for the mean of a bounded random variable") for u ~ Gamma(1), one whole unseen problem,
        which for 0/1 scores is the exact interval of Clopper and Pearson.
    Departure: half a problem. A whole one never covers too little, but gives wider intervals than 95 % needs.

    Args:
        values: one finite score per problem, within [lowest, highest].
        lowest: lowest possible score; −inf where there is none.
        highest: highest possible score; +inf where there is none.

    Returns:
        One interval per column, within [lowest, highest] and wider than 0.

    Raises:
        ConfigError: there are no problems, or a value is not finite or out of range.

    Example:
        Ten of ten solved, and none of ten. The low end of the first is the 0.025-quantile of Beta(10, 1/2).

        >>> solved, unsolved = mean_intervals(torch.tensor([[1.0, 0.0]]).expand(10, 2))
        >>> round(solved.low, 2), solved.high, unsolved.low, round(unsolved.high, 2)
        (0.77, 1.0, 0.0, 0.23)
    """
    values = _checked(values, lowest, highest)
    mean, farthest = _mean_and_farthest(values)
    # Without a spread the distance of an unseen problem is unknown.
    farthest = torch.where(farthest > 0, farthest, math.inf)
    low_end = mean - farthest if math.isinf(lowest) else torch.full_like(mean, lowest)
    high_end = mean + farthest if math.isinf(highest) else torch.full_like(mean, highest)
    return _intervals(values, low_end, high_end)


def paired_interval(before: Float[Tensor, "problems"], after: Float[Tensor, "problems_after"]) -> Interval:
    """The interval of `paired_intervals` for one score a problem.

    Example:
        >>> paired_interval(torch.tensor([0.0, 0.5]), torch.tensor([0.5, 0.5])).mean
        0.25
    """
    return paired_intervals(before[:, None], after[:, None])[0]


def paired_intervals(
    before: Float[Tensor, "problems columns"], after: Float[Tensor, "problems_after columns"]
) -> list[Interval]:
    """Confidence interval of each column's mean(after − before) on the same problems; pairing cancels difficulty.

    Like `mean_intervals` of the differences, except that the unseen half problem is as far from their mean as the
    farthest observed one, not at ±1: two policies seldom differ that much on a problem, and with 30 problems the
    interval would often be twice too wide or more. It is at ±1 only where all differences agree.

    Args:
        before: scores in [0, 1].
        after: scores of the same problems in the same order.

    Returns:
        One per column, within [−1, 1].

    Raises:
        ConfigError: the numbers of problems differ, or as in `mean_intervals`.

    Example:
        >>> (change,) = paired_intervals(torch.zeros(4, 1), torch.full((4, 1), 0.5))
        >>> change.mean
        0.5
    """
    if len(before) != len(after):
        raise ConfigError(
            f"{len(before)} problems before and {len(after)} after: a paired interval needs the same ones"
        )
    differences = _checked(after.double() - before.double(), -1.0, 1.0)
    mean, farthest = _mean_and_farthest(differences)
    farthest = torch.where(farthest > 0, farthest, 2.0)
    return _intervals(differences, (mean - farthest).clamp(min=-1), (mean + farthest).clamp(max=1))


def _checked(values: Float[Tensor, "problems columns"], lowest: float, highest: float) -> Tensor:
    if len(values) == 0:
        raise ConfigError("a confidence interval over 0 problems: there is nothing to resample")
    values = values.detach().double().cpu()
    outside = ~values.isfinite() | (values < lowest) | (values > highest)
    if bool(outside.any()):
        raise ConfigError(
            f"a confidence interval over the score {values[outside][0].item()}: "
            f"a score must be a number in [{lowest}, {highest}]"
        )
    return values


def _mean_and_farthest(values: Float[Tensor, "problems columns"]) -> tuple[Tensor, Tensor]:
    """Mean of each column, and the largest distance of a problem from it: exactly 0 where all problems agree."""
    mean = values.mean(0)
    agree = (values == values[0]).all(0)
    mean = torch.where(agree, values[0], mean)
    return mean, torch.where(agree, 0.0, (values - mean).abs().amax(0))


def _intervals(
    values: Float[Tensor, "problems columns"], low_end: Float[Tensor, "columns"], high_end: Float[Tensor, "columns"]
) -> list[Interval]:
    # Weights depend on the position: unsorted, another order of the problems would give another interval.
    sums, totals, unseen = _resampled(values.sort(dim=0).values)
    rank = max(1, math.floor((1 - CONFIDENCE) / 2 * (NUM_RESAMPLES + 1)))
    # torch.quantile refuses more than 2²⁴ numbers.
    low = ((sums + unseen * low_end) / (totals + unseen)).kthvalue(rank, dim=0).values
    high = ((sums + unseen * high_end) / (totals + unseen)).kthvalue(NUM_RESAMPLES + 1 - rank, dim=0).values
    # Rounding could move a weighted mean outside of the range.
    low, high = torch.maximum(low, low_end), torch.minimum(high, high_end)
    mean, _ = _mean_and_farthest(values)
    rows = torch.stack([mean, low, high], dim=1).tolist()
    return [Interval(mean=mean, low=low, high=high) for mean, low, high in rows]


def _resampled(
    values: Float[Tensor, "problems columns"],
) -> tuple[Float[Tensor, "resamples columns"], Float[Tensor, "resamples 1"], Float[Tensor, "resamples 1"]]:
    """Σ_i w_i x_i, Σ_i w_i and u for each resample."""
    generator = torch.Generator().manual_seed(0)
    step = max(1, WEIGHTS_AT_ONCE // len(values))
    sums, totals = [], []
    for start in range(0, NUM_RESAMPLES, step):
        weights = values.new_empty(min(step, NUM_RESAMPLES - start), len(values)).exponential_(generator=generator)
        sums.append(weights @ values)
        totals.append(weights.sum(1, keepdim=True))
    # Half the square of a standard normal variable has the distribution Gamma(1/2).
    unseen = torch.randn(NUM_RESAMPLES, 1, dtype=torch.float64, generator=generator).square() / 2
    return torch.cat(sums), torch.cat(totals), unseen

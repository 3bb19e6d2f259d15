"""Shares of tokens, with an interval over problems: tokens of one problem are not independent."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.evaluation.records import Estimate
from apo_lightning.metrics.intervals import NUM_RESAMPLES

RESAMPLES_AT_ONCE = 1000
"""Bounds the memory: 8 bytes a resample and problem."""
NO_SPREAD = 1e-12
"""Shares that differ by less are equal up to rounding."""


def ratio_estimate(
    numerators: Float[Tensor, "problems"] | Int[Tensor, "problems"], denominators: Int[Tensor, "problems"]
) -> Estimate:
    """Σ numerators / Σ denominators with a 95 % interval: every token weighs the same, and *problems* are resampled.

    As `intervals.mean_intervals`, with half an unseen problem of average size at either end. Its share is as far from
    the ratio as the farthest that was seen; where all problems agree, it is any share in [0, 1].

    Source: resampling of whole clusters, Davison and Hinkley 1997, "Bootstrap methods and their application", 3.8.

    Args:
        numerators: n_i of each problem, in [0, d_i].
        denominators: d_i, tokens of each problem, above 0.

    Example:
        One problem of 30 tokens and one of 10: their shares 0.9 and 0.5 average to 0.7, their tokens to 0.8.

        >>> estimate = ratio_estimate(torch.tensor([27, 5]), torch.tensor([30, 10]))
        >>> estimate.value, estimate.low >= 0.5, estimate.high <= 1
        (0.8, True, True)
    """
    top, bottom = numerators.double().cpu(), denominators.double().cpu()
    ratio = float(top.sum() / bottom.sum())
    farthest = float((top / bottom - ratio).abs().max())
    spread = farthest if farthest > NO_SPREAD else 1.0
    lowest, highest = max(ratio - spread, 0.0), min(ratio + spread, 1.0)
    generator = torch.Generator().manual_seed(0)
    lows, highs = [], []
    for _ in range(0, NUM_RESAMPLES, RESAMPLES_AT_ONCE):
        weights = top.new_empty(RESAMPLES_AT_ONCE, len(top)).exponential_(generator=generator)
        # The square of a standard normal number, halved, has the distribution Gamma(1/2).
        unseen = torch.randn(RESAMPLES_AT_ONCE, dtype=torch.float64, generator=generator).square() / 2 * bottom.mean()
        total = weights @ bottom + unseen
        lows.append((weights @ top + unseen * lowest) / total)
        highs.append((weights @ top + unseen * highest) / total)
    low, high = float(torch.cat(lows).quantile(0.025)), float(torch.cat(highs).quantile(0.975))
    return Estimate(value=ratio, low=max(min(ratio, low), lowest), high=min(max(ratio, high), highest))

"""Shares of tokens, with an interval over problems: tokens of one problem are not independent."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.evaluation.records import Estimate

NUM_RESAMPLES = 10_000
CONFIDENCE = 0.95
RESAMPLES_AT_ONCE = 1000
NO_SPREAD = 1e-12
"""Shares that differ by less are equal up to rounding."""


def ratio_estimate(
    numerators: Float[Tensor, "problems"] | Int[Tensor, "problems"], denominators: Int[Tensor, "problems"]
) -> Estimate:
    """Σ numerators / Σ denominators: every token weighs the same. The interval resamples *problems*.

    As in `metrics.intervals`, each end also holds half an unseen problem. It has the average length d̄, and its share is
    as far from the ratio as the farthest that was seen, s; where all problems agree, any share at all:

        low  = quantile_{0.025} of (Σ_i w_i n_i + u·d̄·(r − s)) / (Σ_i w_i d_i + u·d̄),   r − s at least 0
        high = quantile_{0.975} of (Σ_i w_i n_i + u·d̄·(r + s)) / (Σ_i w_i d_i + u·d̄),   r + s at most 1
        w_i ~ Gamma(1), u ~ Gamma(1/2), independent

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
    ratio = (top.sum() / bottom.sum()).item()
    farthest = (top / bottom - ratio).abs().max().item()
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
    tail = (1 - CONFIDENCE) / 2
    return Estimate(
        value=ratio,
        low=torch.cat(lows).quantile(tail).clamp(min=lowest).item(),
        high=torch.cat(highs).quantile(1 - tail).clamp(max=highest).item(),
    )

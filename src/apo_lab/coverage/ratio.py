"""Shares of tokens, with an interval over problems: tokens of one problem are not independent."""

from jaxtyping import Float, Int
from torch import Tensor

from apo_lab.statistics.recovery import ratio_interval
from apo_lightning.evaluation.records import Estimate

RESAMPLES_AT_ONCE = 1000
NO_SPREAD = 1e-12
"""Shares that differ by less are equal up to rounding."""


def ratio_estimate(
    numerators: Float[Tensor, "problems"] | Int[Tensor, "problems"], denominators: Int[Tensor, "problems"]
) -> Estimate:
    """Σ numerators / Σ denominators: every token weighs the same. The interval resamples *problems*.

    `ratio_interval` adds half an unseen problem at either end. Its share is as far from the ratio as the farthest that
    was seen; where all problems agree, it is any share in [0, 1].

    Args:
        numerators: n_i of each problem, in [0, d_i].
        denominators: d_i, tokens of each problem, above 0.

    Example:
        One problem of 30 tokens and one of 10: their shares 0.9 and 0.5 average to 0.7, their tokens to 0.8.

        >>> import torch
        >>> estimate = ratio_estimate(torch.tensor([27, 5]), torch.tensor([30, 10]))
        >>> estimate.value, estimate.low >= 0.5, estimate.high <= 1
        (0.8, True, True)
    """
    top, bottom = numerators.double().cpu(), denominators.double().cpu()
    ratio = float(top.sum() / bottom.sum())
    farthest = float((top / bottom - ratio).abs().max())
    spread = farthest if farthest > NO_SPREAD else 1.0
    bounds = (max(ratio - spread, 0.0), min(ratio + spread, 1.0))
    found = ratio_interval(top, bottom, bounds=bounds, resamples_at_once=RESAMPLES_AT_ONCE)
    return Estimate(value=ratio, low=max(found.low, bounds[0]), high=min(found.high, bounds[1]))

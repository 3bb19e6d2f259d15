"""Shares of tokens, with an interval over problems: a problem's tokens stand and fall together."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.evaluation.records import Estimate

RESAMPLED_PROBLEMS_AT_ONCE = 2**22


def ratio_estimate(
    numerators: Float[Tensor, "problems"] | Int[Tensor, "problems"],
    denominators: Int[Tensor, "problems"],
    *,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """Σ numerators / Σ denominators: every token weighs the same; percentile bootstrap over problems.

    Both sums are taken over the same resampled problems. Where all problems have one and the same share the bootstrap
    has no width. Were a fraction q of alike problems different, all P would agree with probability (1 − q)^P, so
    q ≤ 1 − (1 − confidence)^(1/P) at that confidence; these have any share in [0, 1].

    Args:
        numerators: of each problem, in [0, its denominator].
        denominators: tokens of each problem, above 0.
        confidence: in (0, 1).
        num_resamples: of the problems, with replacement.
        seed: of a generator of its own; the global one is left alone.

    Source: Efron and Tibshirani, *An Introduction to the Bootstrap* (1993), section 13.3.

    Example:
        One problem of 30 tokens and one of 10: their shares 0.9 and 0.5 average to 0.7, their tokens to 0.8.

        >>> ratio_estimate(torch.tensor([27, 5]), torch.tensor([30, 10]))
        Estimate(value=0.8, low=0.5, high=0.9)
    """
    top, bottom = numerators.double().cpu(), denominators.double().cpu()
    value = (top.sum() / bottom.sum()).item()
    shares = top / bottom
    if bool((shares == shares[0]).all()):
        others = 1 - (1 - confidence) ** (1 / len(shares))
        return Estimate(value=value, low=value * (1 - others), high=value + (1 - value) * others)
    ratios = _resampled_ratios(top, bottom, num_resamples, seed)
    tail = (1 - confidence) / 2
    low, high = ratios.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Estimate(value=value, low=low, high=high)


def _resampled_ratios(
    top: Float[Tensor, "problems"], bottom: Float[Tensor, "problems"], num_resamples: int, seed: int
) -> Float[Tensor, "resamples"]:
    generator = torch.Generator().manual_seed(seed)
    step = max(1, RESAMPLED_PROBLEMS_AT_ONCE // len(top))
    ratios = []
    for start in range(0, num_resamples, step):
        chosen = torch.randint(len(top), (min(step, num_resamples - start), len(top)), generator=generator)
        ratios.append(top[chosen].sum(1) / bottom[chosen].sum(1))
    return torch.cat(ratios)

"""Cover@τ: how many problems a policy solves reliably, where pass@k asks how many it solves at all."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
"""The τ at which the curve is reported; pass@64 is above 1/2 where p(x) is above 0.011."""


def cover_curve(success: Float[Tensor, "problems"], thresholds: Sequence[float] = THRESHOLDS) -> dict[str, float]:
    """`cover@τ` for each τ in (0, 1]: the share of problems with p(x) ≥ τ, in [0, 1]; it falls with τ.

    Its integral over τ is pass@1, the mean of p(x). pass@k is its mean with the weight k(1 − τ)^{k−1}, which lies near
    τ = 0 for large k.

    Source: Dragoi et al. 2025, "Beyond Pass@k: breadth-depth metrics for reasoning boundaries" (arXiv 2510.08325).
    Departure: p(x) is exact, where the source samples.

    Example:
        >>> import torch
        >>> cover_curve(torch.tensor([0.05, 0.5]), (0.01, 0.2, 0.8))
        {'cover@0.01': 1.0, 'cover@0.2': 0.5, 'cover@0.8': 0.0}
    """
    return {f"cover@{threshold:g}": (success >= threshold).double().mean().item() for threshold in thresholds}

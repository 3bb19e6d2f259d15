"""The mean of a per-token number over a step; infinite values are counted separately."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric


class TokenMeanResult(NamedTuple):
    """A mean over tokens, and how many faults did not enter it."""

    mean: Tensor
    """Mean over finite values; NaN where there is none."""
    num_infinite: Tensor
    """Infinite values, which are always a fault."""


class TokenMean(Metric):
    """Mean over finite values: NaN is where the number does not apply, and infinite values are counted as faults.

    Example:
        >>> metric = TokenMean()
        >>> metric.update(torch.tensor([1.0, 2.0, torch.nan, torch.inf]))
        >>> [value.item() for value in metric.compute()]
        [1.5, 1]
    """

    is_differentiable = False
    full_state_update = False

    total: Tensor
    num_finite: Tensor
    num_infinite: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("num_finite", "num_infinite"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, values: Float[Tensor, "tokens"]) -> None:
        """Add some tokens."""
        values = values.detach()
        finite = values.isfinite()
        self.total += values[finite].double().sum()
        self.num_finite += finite.sum()
        self.num_infinite += values.isinf().sum()

    def compute(self) -> TokenMeanResult:
        """The mean so far, over all ranks."""
        return TokenMeanResult(self.total / self.num_finite, self.num_infinite)

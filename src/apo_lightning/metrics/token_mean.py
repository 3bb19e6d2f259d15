"""The mean of a per-token number over a step, with everything that is not a number counted apart."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric


class TokenMeanResult(NamedTuple):
    """A mean over tokens, and how many did not enter it."""

    mean: Tensor
    """Mean over finite values; NaN where there is none."""
    num_finite: Tensor
    num_nan: Tensor
    """Tokens to which the number does not apply (or, where it always applies, a fault)."""
    num_infinite: Tensor
    """Infinite values, which are always a fault."""


class TokenMean(Metric):
    """Mean over tokens. Non-finite values are counted, never averaged away.

    Example:
        >>> metric = TokenMean()
        >>> metric.update(torch.tensor([1.0, 2.0, torch.nan, torch.inf]))
        >>> [value.item() for value in metric.compute()]
        [1.5, 2, 1, 1]
    """

    is_differentiable = False
    full_state_update = False

    total: Tensor
    num_finite: Tensor
    num_nan: Tensor
    num_infinite: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")
        for name in ("num_finite", "num_nan", "num_infinite"):
            self.add_state(name, torch.zeros((), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, values: Float[Tensor, "tokens"]) -> None:
        """Take in some tokens."""
        values = values.detach()
        finite = values.isfinite()
        self.total += values[finite].double().sum()
        self.num_finite += finite.sum()
        self.num_nan += values.isnan().sum()
        self.num_infinite += values.isinf().sum()

    def compute(self) -> TokenMeanResult:
        """The mean so far, over all ranks."""
        return TokenMeanResult(self.total / self.num_finite, self.num_finite, self.num_nan, self.num_infinite)

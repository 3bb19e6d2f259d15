"""The mean of a per-token number over a step; infinite values are counted separately."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.types import Rollouts


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


def pass_at_one_and_all(rollouts: Rollouts, device: torch.device) -> dict[int, float]:
    """Mean pass@1 and pass@G over the problems of all ranks, by k; collective."""
    num_correct = rollouts.is_correct.sum(1).to(device)
    num_samples = torch.full_like(num_correct, rollouts.group_size)
    result = {}
    for k in sorted({1, rollouts.group_size}):
        mean = TokenMean().to(device)
        mean.update(pass_at_k(num_samples, num_correct, k))
        result[k] = float(mean.compute().mean)
    return result

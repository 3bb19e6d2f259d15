"""Means of per-token numbers over a step; infinite values are counted separately."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.types import Rollouts


class TokenMeansResult(NamedTuple):
    """Means over tokens, and how many faults did not enter each."""

    means: Float[Tensor, "numbers"]
    """Means over finite values; NaN where there is none."""
    num_infinite: Float[Tensor, "numbers"]
    """Infinite values, which are always a fault."""


class TokenMeans(Metric):
    """Means over finite values: NaN is where a number does not apply, and infinite values are counted as faults.

    All numbers share one state, so that a step has one reduction over ranks and one copy from a GPU.

    Args:
        num_numbers: how many means.

    Example:
        >>> metric = TokenMeans(2)
        >>> metric.update([torch.tensor([1.0, 2.0, torch.nan, torch.inf]), torch.tensor([3.0])])
        >>> [values.tolist() for values in metric.compute()]
        [[1.5, 3.0], [1.0, 0.0]]
    """

    is_differentiable = False
    full_state_update = False

    sums: Float[Tensor, "numbers 3"]
    """Σ of the finite values, their number, and that of infinite ones."""

    def __init__(self, num_numbers: int) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(num_numbers, 3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, columns: Sequence[Float[Tensor, "_"]]) -> None:
        """Add some tokens of each number; columns of one device next to one another are copied together."""
        rows = groupby((_sums(column.detach()) for column in columns), key=lambda row: row.device)
        self.sums += torch.cat([torch.stack(list(part)).to(self.sums.device) for _, part in rows])

    def compute(self) -> TokenMeansResult:
        """The means so far, over all ranks; on the CPU."""
        total, num_finite, num_infinite = self.sums.cpu().unbind(1)
        return TokenMeansResult(total / num_finite, num_infinite)


def means_of(columns: Mapping[str, Tensor], device: torch.device) -> tuple[dict[str, float], int]:
    """The mean of each column over all ranks, and how many of all values are infinite; collective."""
    names = sorted(columns, key=lambda name: columns[name].device.type)
    metric = TokenMeans(len(names)).to(device)
    metric.update([columns[name] for name in names])
    means, num_infinite = metric.compute()
    return dict(zip(names, means.view(-1).tolist(), strict=True)), int(num_infinite.sum())


def _sums(values: Float[Tensor, "tokens"]) -> Float[Tensor, "3"]:
    finite = values.isfinite()
    return torch.stack([values.double().where(finite, 0.0).sum(), finite.double().sum(), values.isinf().double().sum()])


def pass_at_one_and_all(rollouts: Rollouts) -> dict[int, Float[Tensor, "problems"]]:
    """pass@1 and pass@G of each problem, by k."""
    num_correct = rollouts.is_correct.sum(1)
    num_samples = torch.full_like(num_correct, rollouts.group_size)
    return {k: pass_at_k(num_samples, num_correct, k) for k in sorted({1, rollouts.group_size})}

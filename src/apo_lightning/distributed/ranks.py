"""What one rank must know of the others: its share of the prompts, and sums over all ranks."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from apo_lightning.distributed.gathering import from_all_ranks, items_of_all_ranks
from apo_lightning.model.flops import peak_flops_per_second

Item = TypeVar("Item")


class Ranks:
    """The processes of a run. With one process everything here is the identity."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self.rank = trainer.global_rank
        self.world_size = trainer.world_size

    def share(self, items: Sequence[Item], items_per_minibatch: int) -> list[Item]:
        """This rank's part of each mini-batch, so that every mini-batch is spread over all ranks.

        Mini-batches are formed before the ranks divide the work: their number must not change what is learnt.
        """
        if self.world_size == 1:
            return list(items)
        return [item for i, item in enumerate(items) if (i % items_per_minibatch) % self.world_size == self.rank]

    def sum(self, value: float | int) -> float:
        """The sum of the ranks' values."""
        return float(value) if self.world_size == 1 else float(self._reduce(value, "sum"))

    def sums(self, values: Sequence[float | int]) -> list[float]:
        """The sum of the ranks' values, of each in turn."""
        if self.world_size == 1:
            return [float(value) for value in values]
        return self._reduce(values, "sum").tolist()

    def max(self, value: float | int) -> float:
        """The largest of the ranks' values."""
        return float(value) if self.world_size == 1 else float(self._reduce(value, "max"))

    def together(self, items: Sequence[Item]) -> list[Item]:
        """All ranks' items, in rank order: a decision made from them is the same everywhere."""
        return items_of_all_ranks(items)

    def union(self, names: frozenset[str]) -> frozenset[str]:
        """The names that at least one rank gives."""
        return frozenset[str]().union(*from_all_ranks(names))

    def _reduce(self, value: float | int | Sequence[float | int], operation: str) -> Tensor:
        tensor = torch.tensor(value, dtype=torch.float64, device=self.trainer.strategy.root_device)
        kind = torch.distributed.ReduceOp.SUM if operation == "sum" else torch.distributed.ReduceOp.MAX
        torch.distributed.all_reduce(tensor, op=kind)
        return tensor


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradient to norm ≤ `max_norm` (None: leave it) and return the norm it had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def zero_gradient(policy: nn.Module) -> None:
    """A gradient of zeros for an optimizer step where there was no backward.

    Without one an optimizer passes a parameter over, and neither momentum nor weight decay would act.

    Args:
        policy: sharded or not.
    """
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def total_peak_flops(trainer: pl.Trainer) -> float | None:
    """The peak of all GPUs of a run together [FLOP/s]; None on CPUs, and on a GPU that is not known, which is said."""
    device = trainer.strategy.root_device
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peak = peak_flops_per_second(name)
    if peak is None:
        rank_zero_info(f"no perf/mfu: model/flops.py does not know the peak of {name}")
        return None
    return peak * trainer.world_size


def count_rollout(trainer: pl.Trainer) -> None:
    """Advance Lightning's step counter by one rollout.

    Lightning counts optimizer steps, of which a rollout may have sixteen or none; `max_steps`, `global_step` and
    `val_check_interval` would then mean something else for every mini-batch size.
    """
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()

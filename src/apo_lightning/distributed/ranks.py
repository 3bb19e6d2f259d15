"""A rank's share of the prompts, reductions over ranks, and small steps of distributed training."""

import math
from collections.abc import Iterable, Sequence
from typing import TypeVar

import lightning.pytorch as pl
import torch
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from apo_lightning.model.flops import peak_flops_per_second

Item = TypeVar("Item")


class Ranks:
    """The processes of a run. With one process every method is the identity."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self.rank = trainer.global_rank
        self.world_size = trainer.world_size

    def share(self, items: Sequence[Item], items_per_minibatch: int) -> list[Item]:
        """This rank's part of each mini-batch: every mini-batch is spread over all ranks.

        Mini-batches are formed before they are divided, so the number of ranks does not change the training.
        """
        return [item for i, item in enumerate(items) if self.owner(i, items_per_minibatch) == self.rank]

    def owner(self, place: int, items_per_minibatch: int) -> int:
        """The rank that `share` gives the item at this place."""
        return (place % items_per_minibatch) % self.world_size

    def sum(self, value: float | int) -> float:
        """The sum of a value over all ranks; collective."""
        return self.sums([value])[0]

    def sums(self, values: Sequence[float | int]) -> list[float]:
        """The element-wise sum of several values over all ranks; collective."""
        if self.world_size == 1:
            return [float(value) for value in values]
        return self._reduce(values, torch.distributed.ReduceOp.SUM).tolist()

    def max(self, value: float | int) -> float:
        """The maximum of a value over all ranks; collective."""
        return float(value) if self.world_size == 1 else float(self._reduce([value], torch.distributed.ReduceOp.MAX))

    def finish_queued(self) -> None:
        """Wait until this rank's GPU has done all that it was told to."""
        if self.trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(self.trainer.strategy.root_device)

    def _reduce(self, values: Sequence[float | int], operation: torch.distributed.ReduceOp.RedOpType) -> Tensor:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.trainer.strategy.root_device)
        torch.distributed.all_reduce(tensor, op=operation)
        return tensor


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradient to norm ≤ `max_norm` (None: do not); returns the norm before, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def zero_gradient(policy: nn.Module) -> None:
    """Set a gradient of zeros, without which an optimizer would skip momentum and weight decay."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)


def total_peak_flops(trainer: pl.Trainer) -> float | None:
    """The summed peak of all GPUs of a run [FLOP/s]; None on CPUs and, with a log message, on an unknown GPU."""
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

    Lightning counts optimizer steps, of which a rollout has any number; the meaning of `max_steps`, `global_step` and
    `val_check_interval` would depend on the mini-batch size.
    """
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()

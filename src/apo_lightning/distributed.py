"""What one rank must know of the others: its share of the prompts, sums over all ranks, sharding."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

if TYPE_CHECKING:
    from apo_lightning.policy import Policy

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
        """Over all ranks."""
        return float(value) if self.world_size == 1 else float(self._reduce(value, "sum"))

    def max(self, value: float | int) -> float:
        """Over all ranks."""
        return float(value) if self.world_size == 1 else float(self._reduce(value, "max"))

    def _reduce(self, value: float | int, operation: str) -> Tensor:
        tensor = torch.tensor(float(value), dtype=torch.float64, device=self.trainer.strategy.root_device)
        kind = torch.distributed.ReduceOp.SUM if operation == "sum" else torch.distributed.ReduceOp.MAX
        torch.distributed.all_reduce(tensor, op=kind)
        return tensor


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradient to norm ≤ `max_norm` (None: leave it) and return the norm it had, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def shard(policy: "Policy", trainer: pl.Trainer) -> None:
    """Shard the policy with FSDP2, a unit per decoder layer, where the trainer's strategy is a sharding one.

    The root unit (embedding, final norm, head) stays gathered between forward and backward: the head's backward
    reads its weight, which would otherwise be a shard by then.
    """
    if not isinstance(trainer.strategy, ModelParallelStrategy):
        return
    assert trainer.strategy.device_mesh is not None
    mesh = trainer.strategy.device_mesh["data_parallel"]
    for layer in cast(nn.ModuleList, policy.model.base_model.layers):
        fully_shard(layer, mesh=mesh)
    fully_shard(policy, mesh=mesh, reshard_after_forward=False)
    # Sharded weights are gathered around `forward` alone, unless another method is named.
    for method in ("hidden_states", "as_reference"):
        register_fsdp_forward_method(policy, method)


def count_rollout(trainer: pl.Trainer) -> None:
    """Advance Lightning's step counter by one rollout.

    Lightning counts optimizer steps, of which a rollout may have sixteen or none; `max_steps`, `global_step` and
    `val_check_interval` would then mean something else for every mini-batch size.
    """
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()

"""FSDP2: distributing the weights of the first rank as shards over all ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.root_params import refuse_other_passes
from apo_lightning.errors import ConfigError
from apo_lightning.model.lora import has_adapters
from apo_lightning.model.policy import Policy


class ShardedStrategy(ModelParallelStrategy):
    """Shards weights, gradients and optimizer state over the ranks.

    Args:
        data_parallel_size: number of shards; equal to the number of processes.
        process_group_backend: "nccl" for GPUs, "gloo" for CPUs.
        timeout: how long a rank waits for the others; at least the duration of the longest rollout.
    """

    def __init__(self, data_parallel_size: int, process_group_backend: str, timeout: timedelta):
        super().__init__(
            data_parallel_size=data_parallel_size,
            tensor_parallel_size=1,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self.whole_weights: Mapping[str, Tensor] = {}
        """The unsharded weights on the first rank, from loading to sharding; empty on the other ranks."""


def load_model(
    load: Callable[[], PreTrainedModel], load_skeleton: Callable[[], PreTrainedModel], trainer: pl.Trainer
) -> PreTrainedModel:
    """A model with weights, or if the trainer shards its skeleton; the first rank then keeps the weights for `shard`.

    Raises `ConfigError` for a sharding strategy of Lightning's own.

    Args:
        load: makes the model with its weights.
        load_skeleton: makes the same model on the meta device.
        trainer: of the run.
    """
    strategy = trainer.strategy
    if type(strategy) is ModelParallelStrategy:
        raise ConfigError(
            "trainer.strategy is ModelParallelStrategy: choose apo_lightning.distributed.sharding.ShardedStrategy"
        )
    if not isinstance(strategy, ShardedStrategy):
        return load()
    if trainer.global_rank == 0:
        strategy.whole_weights = dict(_tensors(load()))
    return load_skeleton()


def shard(policies: Sequence[Policy], trainer: pl.Trainer) -> None:
    """Shard policy and reference, if the trainer shards, and fill their shards with the first rank's weights.

    Ranks other than the first never hold more than one unsharded tensor. Lightning calls this for each of the trainer's
    functions; only the first call has an effect.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, ShardedStrategy):
        return
    for policy in policies:
        if isinstance(policy, FSDPModule):
            continue
        _make_units(policy, strategy)
        policy.to_empty(device=strategy.root_device)
        _fill(policy.model, strategy.whole_weights, strategy.root_device)
        policy.reset_attached()
    strategy.whole_weights = {}


def _make_units(policy: Policy, strategy: ShardedStrategy) -> None:
    """Make one FSDP unit per decoder layer, and a root unit of embedding, final norm and head.

    The root stays gathered from a pass's first forward to its last backward: each backward begins at the head, which
    reads its weight. It is gathered in float32, since the residual stream, which autocast keeps in float32, starts at
    the embedding. The layers, most of the weights, are gathered in the compute dtype. A frozen policy's layers are
    also stored in it, unless they are averaged with others: they have no updates to lose, and what is gathered is the
    same to the bit.
    """
    mesh = strategy.device_mesh["data_parallel"]
    layer_precision = MixedPrecisionPolicy()
    # An adapted layer rounds after adding the adapter: a small adapter would vanish in a rounded weight.
    if policy.compute_dtype != torch.float32 and not has_adapters(policy.model):
        layer_precision = MixedPrecisionPolicy(
            param_dtype=policy.compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    is_frozen = not any(parameter.requires_grad for parameter in policy.parameters())
    is_rounded = is_frozen and policy.is_rounded_when_frozen
    for layer in cast(nn.ModuleList, policy.model.base_model.layers):
        if is_rounded:
            for parameter in layer.parameters():
                parameter.data = parameter.data.to(policy.compute_dtype)
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, mp_policy=layer_precision)
    root = fully_shard(policy, mesh=mesh, reshard_after_forward=False)
    root.set_reshard_after_backward(False, recurse=False)
    # FSDP2 gathers weights only around `forward`, unless another method is registered.
    for method in ("hidden_states", "as_reference"):
        register_fsdp_forward_method(policy, method)
    refuse_other_passes(policy, policy.model.base_model)


@torch.no_grad()
def _fill(model: nn.Module, whole_weights: Mapping[str, Tensor], device: torch.device) -> None:
    """Fill the shard of every parameter, and every buffer unsharded, rotary tables included."""
    is_first = process_rank() == 0
    for name, target in _tensors(model):
        whole = whole_weights[name] if is_first else torch.empty(target.shape, dtype=target.dtype)
        whole = whole.detach().to(device, target.dtype)
        torch.distributed.broadcast(whole, src=0)
        if isinstance(target, DTensor):
            shard = distribute_tensor(whole, target.device_mesh, target.placements, src_data_rank=None)
            target.to_local().copy_(shard.to_local())
        else:
            owner, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(owner), attribute, whole.clone())


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All parameters, tied ones once, and all buffers."""
    yield from model.named_parameters()
    yield from model.named_buffers()

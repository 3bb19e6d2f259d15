"""FSDP2: distributing the weights of the first rank as shards over all ranks."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import lightning.pytorch as pl
import torch
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.lightning_private import note_device
from apo_lightning.distributed.root_params import refuse_other_passes
from apo_lightning.errors import ConfigError
from apo_lightning.model.lora import LoRA, has_adapters
from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec


class ShardedStrategy(ModelParallelStrategy):
    """Shards weights, gradients and optimizer state over the ranks.

    Args:
        data_parallel_size: number of shards; equal to the number of processes.
        process_group_backend: "nccl" for GPUs, "gloo" for CPUs.
        timeout: how long a rank waits for the others; at least the duration of the longest rollout.
        reshard_after_forward: False keeps a decoder layer's weights gathered from its forward to its backward, which
            saves one gather and takes the memory of an unsharded policy.
        offload_to_cpu: keep shards, their gradients and the optimizer state in the CPU's memory, where the optimizer
            steps. GPUs only.
    """

    def __init__(
        self,
        data_parallel_size: int,
        process_group_backend: str,
        timeout: timedelta,
        reshard_after_forward: bool = True,
        offload_to_cpu: bool = False,
    ):
        super().__init__(
            data_parallel_size=data_parallel_size,
            tensor_parallel_size=1,
            # The gradient norm and the weight sync communicate shards that are on the CPU.
            process_group_backend=f"cpu:gloo,cuda:{process_group_backend}" if offload_to_cpu else process_group_backend,
            timeout=timeout,
        )
        self.reshard_after_forward = reshard_after_forward
        self.offload_to_cpu = offload_to_cpu
        self.whole_weights: Mapping[str, Tensor] = {}
        """The unsharded weights on the first rank, from loading to sharding; empty on the other ranks."""

    def model_to_device(self) -> None:
        """Move the model to its device, except for offloaded shards, which FSDP2 requires on the CPU."""
        if not self.offload_to_cpu:
            super().model_to_device()
            return
        assert self.lightning_module is not None
        for child in self.lightning_module.children():
            if not any(isinstance(module, FSDPModule) for module in child.modules()):
                child.to(self.root_device)
        note_device(self.lightning_module, self.root_device)


def load_model(spec: PolicySpec, lora: LoRA | None, seed: int, trainer: pl.Trainer) -> PreTrainedModel:
    """Load the model and attach adapters. If the trainer shards, only the first rank loads the weights, for `shard`.

    Args:
        spec: the model.
        lora: its adapters; None: all weights are trained.
        seed: of random weights.
        trainer: knows its rank before the process group exists.

    Returns:
        The model; if the trainer shards, without weights (on the meta device) on every rank.

    Raises:
        ConfigError: the strategy is Lightning's own ModelParallelStrategy, which `shard` does not support.
    """
    strategy = trainer.strategy
    if type(strategy) is ModelParallelStrategy:
        raise ConfigError(
            "trainer.strategy is ModelParallelStrategy: choose apo_lightning.distributed.sharding.ShardedStrategy"
        )
    if not isinstance(strategy, ShardedStrategy):
        return _adapted(spec.load_model(seed), lora, seed)
    if trainer.global_rank == 0:
        strategy.whole_weights = dict(_tensors(_adapted(spec.load_model(seed), lora, seed)))
    return _adapted(spec.load_skeleton(), lora, seed)


def _adapted(model: PreTrainedModel, lora: LoRA | None, seed: int) -> PreTrainedModel:
    if lora is not None:
        lora.attach(model, seed)
    return model


def shard(policies: Sequence[Policy], trainer: pl.Trainer) -> None:
    """Shard policies from `load_model` and fill their shards, if the trainer shards.

    Ranks other than the first never hold more than one unsharded tensor. All policies get the same weights. Lightning
    calls this for each of the trainer's functions; only the first call has an effect.

    Args:
        policies: the policy and, if any, the reference and a separate critic; afterwards on the trainer's device,
            unsharded or in shards.
        trainer: its process group exists.
    """
    strategy = trainer.strategy
    if not isinstance(strategy, ShardedStrategy):
        return
    for policy in policies:
        if isinstance(policy, FSDPModule):
            continue
        _make_units(policy, strategy)
        policy.to_empty(device="cpu" if strategy.offload_to_cpu else strategy.root_device)
        _fill(policy.model, strategy.whole_weights, strategy.root_device)
        policy.reset_value_head()
    strategy.whole_weights = {}


def _make_units(policy: Policy, strategy: ShardedStrategy) -> None:
    """Make one FSDP unit per decoder layer, and a root unit of embedding, final norm and head.

    The root stays gathered from a pass's first forward to its last backward: each backward begins at the head, which
    reads its weight. It is gathered in float32, since the residual stream, which autocast keeps in float32, starts at
    the embedding. The layers, most of the weights, are gathered in the compute dtype. A frozen policy's layers are
    also stored in it: they have no updates to lose, and what is gathered is the same to the bit.
    """
    options: dict[str, Any] = {
        "mesh": strategy.device_mesh["data_parallel"],
        "offload_policy": CPUOffloadPolicy() if strategy.offload_to_cpu else OffloadPolicy(),
    }
    layer_precision = MixedPrecisionPolicy()
    # An adapted layer rounds after adding the adapter: a small adapter would vanish in a rounded weight.
    if policy.compute_dtype != torch.float32 and not has_adapters(policy.model):
        layer_precision = MixedPrecisionPolicy(
            param_dtype=policy.compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
    is_frozen = not any(parameter.requires_grad for parameter in policy.parameters())
    for layer in cast(nn.ModuleList, policy.model.base_model.layers):
        if is_frozen:
            for parameter in layer.parameters():
                parameter.data = parameter.data.to(policy.compute_dtype)
        # A frozen policy has no backward after which it would be resharded.
        reshards = strategy.reshard_after_forward or not any(p.requires_grad for p in layer.parameters())
        fully_shard(layer, reshard_after_forward=reshards, mp_policy=layer_precision, **options)
    root = fully_shard(policy, reshard_after_forward=False, **options)
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

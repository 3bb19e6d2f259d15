"""When FSDP2's root unit (embedding and head) is unsharded, when gradients are reduced over ranks, and their clip.

FSDP2 itself gathers and reshards the decoder layers. Gathering the root blocks all other work, so it is gathered for
the first micro-batch of a pass and stays gathered until the last, with which its accumulated gradient is reduced. It
must be resharded before an optimizer steps or parameters are read: the optimizer would update the shards, and the next
forward would read the gathered old weights.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

_in_passes: list[nn.Module] = []
"""The policies inside an open `unsharded_root`."""


@contextmanager
def unsharded_root(policy: nn.Module) -> Iterator[None]:
    """Around the forwards and backwards of several micro-batches: reshard the policy, if it is sharded, afterwards."""
    _in_passes.append(policy)
    try:
        yield
    finally:
        _in_passes.remove(policy)  # not pop: after an error, a generator's inner pass may end after an outer one
    _bring_shards_back(policy)


def refuse_other_passes(policy: nn.Module, backbone: nn.Module) -> None:
    """Make a forward of a sharded policy's backbone outside of `unsharded_root(policy)` an error."""

    def check(*_: object) -> None:
        if not any(one is policy for one in _in_passes):
            raise RuntimeError(
                "a forward of a sharded policy outside of `with distributed.root_params.unsharded_root(policy):`, "
                "which reshards it: put the pass inside, or later passes ignore the optimizer's updates"
            )

    backbone.register_forward_pre_hook(check)


@contextmanager
def grad_sync(policies: Sequence[nn.Module], strategy: Strategy, *, enabled: bool) -> Iterator[None]:
    """Around a backward: reduce its gradient over ranks, or only accumulate it on this rank.

    FSDP2 reduces the gradients of decoder layers with every backward; unsharded, they would take the memory that
    sharding saves. DDP delays the reduction of all gradients. `enabled` is True in the last micro-batch of a
    mini-batch, equally on all ranks.
    """
    for policy in policies:
        if isinstance(policy, FSDPModule):
            policy.set_requires_gradient_sync(enabled, recurse=False)
    is_ddp = isinstance(strategy, DDPStrategy)
    with strategy.block_backward_sync() if is_ddp and not enabled else nullcontext():
        yield


def _bring_shards_back(policy: nn.Module) -> None:
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def clip_grad_norm(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale the gradient to norm ≤ `max_norm` (None: do not); returns the norm before, over all shards."""
    norm = nn.utils.clip_grad_norm_(parameters, math.inf if max_norm is None else max_norm)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def zero_gradient(policy: nn.Module) -> None:
    """Set a gradient of zeros, without which an optimizer would skip momentum and weight decay."""
    for parameter in policy.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)

"""When FSDP2's root unit, embedding and head, is whole, and when gradients are reduced over ranks.

A decoder layer is gathered and resharded by FSDP2 itself. For the root everything waits, so it is gathered for the
first micro-batch of a pass and stays whole to the last, and its gradient is added up whole and reduced with the last.
Its shards must be back before anything steps on them or reads parameter by parameter: an optimizer would step on the
shards and the next forward read the weights from before.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from lightning.pytorch.strategies import DDPStrategy, Strategy
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

_in_passes: list[nn.Module] = []
"""The policies of the `unsharded_root`s that are open."""


@contextmanager
def unsharded_root(policy: nn.Module) -> Iterator[None]:
    """Forwards, and backwards, of one micro-batch after the other; then the policy is in its shards again.

    After an error nothing is left of them but what was reduced before it, and the policy can be run again.

    Args:
        policy: sharded or not; nothing is done to one that is not.
    """
    _in_passes.append(policy)
    try:
        yield
    except BaseException:
        _forget_passes(policy)
        raise
    finally:
        _in_passes.remove(policy)  # after an error an inner one, in a generator, may end behind an outer one
    _bring_shards_back(policy)


def refuse_other_passes(policy: nn.Module, backbone: nn.Module) -> None:
    """From now on a forward of the backbone outside of `unsharded_root(policy)` is an error.

    Args:
        policy: sharded.
        backbone: its part that every pass runs through.
    """

    def check(*_: object) -> None:
        if not any(one is policy for one in _in_passes):
            _forget_passes(policy)
            _bring_shards_back(policy)  # FSDP2 has gathered it already
            raise RuntimeError(
                "a forward of a sharded policy outside of `with distributed.root_params.unsharded_root(policy):`: that "
                "brings its shards back, else the optimizer steps on shards that no later pass reads"
            )

    backbone.register_forward_pre_hook(check)


@contextmanager
def grad_sync(policy: nn.Module, strategy: Strategy, *, enabled: bool) -> Iterator[None]:
    """A backward whose gradient is reduced over ranks, or else added to what earlier ones have left on this one.

    FSDP2 reduces its layers' with every backward: left whole, they would take the memory that sharding spares.

    Args:
        policy: sharded or not.
        strategy: the trainer's; DDP waits with everything.
        enabled: in the last micro-batch of a mini-batch, on all ranks alike.
    """
    if isinstance(policy, FSDPModule):
        policy.set_requires_gradient_sync(enabled, recurse=False)
    is_ddp = isinstance(strategy, DDPStrategy)
    with strategy.block_backward_sync() if is_ddp and not enabled else nullcontext():
        yield


def _bring_shards_back(policy: nn.Module) -> None:
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _forget_passes(policy: nn.Module) -> None:
    # What was added up whole would be in the gradient twice when the passes are repeated. And FSDP2 believes itself
    # within the one that failed: the next backward would end without a gradient.
    if not isinstance(policy, FSDPModule):
        return
    for parameter in policy.parameters():
        if not isinstance(parameter, DTensor):
            parameter.grad = None
    policy.reset_iter_state()

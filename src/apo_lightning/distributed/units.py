"""When FSDP2's root unit, embedding and head, is whole, and when its gradient is reduced.

A decoder layer is gathered and resharded by FSDP2 itself. For the root everything waits, so it is gathered for the
first micro-batch of a pass and stays whole to the last, and its gradient is added up whole and reduced with the last.
Its shards must be back before anything steps on them or reads parameter by parameter: an optimizer would step on the
shards and the next forward read the weights from before.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor


@contextmanager
def whole_root(policy: nn.Module) -> Iterator[None]:
    """Forwards, and backwards, of one micro-batch after the other; then the policy is in its shards again.

    After an error nothing is left of them but what was reduced before it, and the policy can be run again.

    Args:
        policy: sharded or not; nothing is done to one that is not.
    """
    try:
        yield
    except BaseException:
        _forget_passes(policy)
        raise
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def reduce_root(policy: nn.Module, *, now: bool) -> None:
    """Whether the next backward reduces the root's gradient, or adds it to what earlier ones left; layers always do.

    Args:
        policy: sharded or not; nothing is done to one that is not.
        now: in the last micro-batch of a mini-batch, on all ranks alike.
    """
    if isinstance(policy, FSDPModule):
        policy.set_requires_gradient_sync(now, recurse=False)


def _forget_passes(policy: nn.Module) -> None:
    # What was added up whole would be in the gradient twice when the passes are repeated. And FSDP2 believes itself
    # within the one that failed: the next backward would end without a gradient.
    if not isinstance(policy, FSDPModule):
        return
    for parameter in policy.parameters():
        if not isinstance(parameter, DTensor):
            parameter.grad = None
    policy.reset_iter_state()

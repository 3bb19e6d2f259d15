"""A whole model in every process, read from disk by the first one alone."""

from collections.abc import Callable
from typing import TypeVar

import torch

from apo_lightning.common.process_group import num_processes, process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy

Loaded = TypeVar("Loaded")


def on_first_rank(load: Callable[[], Loaded], otherwise: Callable[[], Loaded]) -> Loaded:
    """`load()` on the first rank, and `otherwise()` on the others, once the first has succeeded; collective.

    Raises:
        ConfigError: on the others, where the first has failed: they would wait for its weights.
    """
    if process_rank() > 0:
        [reason, *_] = from_all_ranks(None)
        if reason is not None:
            raise ConfigError(f"the first rank could not load the model: {reason}")
        return otherwise()
    try:
        loaded = load()
    except Exception as error:
        from_all_ranks(f"{type(error).__name__}: {error}")
        raise
    from_all_ranks(None)
    return loaded


@torch.no_grad()
def replicate(policy: Policy, device: torch.device) -> None:
    """Bring the first rank's weights and buffers to every rank's device; collective.

    Args:
        policy: with weights on the first rank; on the others of the same shapes and dtypes, on the meta device.
        device: of this process.
    """
    if process_rank() == 0:
        policy.to(device)
    else:
        policy.to_empty(device=device)
        policy.model.tie_weights()  # on the meta device one tensor, and two once they have memory
    if num_processes() > 1:
        for tensor in (*policy.parameters(), *policy.buffers()):
            torch.distributed.broadcast(tensor.detach(), src=0)

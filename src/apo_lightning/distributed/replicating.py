"""Copying the model, which only the first rank reads from disk, to every process."""

from collections.abc import Callable
from typing import TypeVar

import torch

from apo_lightning.common.process_group import num_processes, process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy

Loaded = TypeVar("Loaded")


def on_first_rank(load: Callable[[], Loaded], otherwise: Callable[[], Loaded]) -> Loaded:
    """Return `load()` on the first rank and, once that has succeeded, `otherwise()` on the others; collective.

    Raises:
        ConfigError: on the other ranks, if the first has failed; they would wait for its weights.
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
    """Broadcast the first rank's weights and buffers to every rank's device, where the policy is meta; collective."""
    if process_rank() == 0:
        policy.to(device)
    else:
        policy.to_empty(device=device)
        policy.model.tie_weights()  # `to_empty` gives a tied weight two tensors
    if num_processes() > 1:
        for tensor in (*policy.parameters(), *policy.buffers()):
            torch.distributed.broadcast(tensor.detach(), src=0)

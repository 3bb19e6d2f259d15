"""A rank's `StepOutput` holds the prompts that this rank worked on; here the ranks put theirs together."""

from typing import Any, TypeVar

import torch

Part = TypeVar("Part")


def from_all_ranks(part: Part) -> list[Part]:
    """Every rank's part, in rank order, on every rank. All ranks have to call it; a single process gets its own back.

    Example:
        >>> from_all_ranks("mine")
        ['mine']
    """
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [part]
    parts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, part)
    return parts

"""A rank's `StepOutput` holds the prompts that this rank worked on; here the ranks put theirs together."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

Part = TypeVar("Part")
Item = TypeVar("Item")


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


def items_of_all_ranks(items: Sequence[Item]) -> list[Item]:
    """Every rank's items, those of the first rank first, on every rank. All ranks have to call it.

    Example:
        >>> items_of_all_ranks([1, 2])
        [1, 2]
    """
    return [item for part in from_all_ranks(items) for item in part]

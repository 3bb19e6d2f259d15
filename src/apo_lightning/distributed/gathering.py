"""A rank's `StepOutput` holds the prompts that this rank worked on; here the ranks put theirs together."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from apo_lightning.common.process_group import num_processes

Part = TypeVar("Part")
Item = TypeVar("Item")


def from_all_ranks(part: Part) -> list[Part]:
    """Every rank's part, in rank order, on every rank. All ranks have to call it; a single process gets its own back.

    Example:
        >>> from_all_ranks("mine")
        ['mine']
    """
    if num_processes() == 1:
        return [part]
    parts: list[Any] = [None] * num_processes()
    torch.distributed.all_gather_object(parts, part)
    return parts


def items_of_all_ranks(items: Sequence[Item]) -> list[Item]:
    """Every rank's items, those of the first rank first, on every rank. All ranks have to call it.

    Example:
        >>> items_of_all_ranks([1, 2])
        [1, 2]
    """
    return [item for part in from_all_ranks(items) for item in part]

"""Gathering Python objects from all ranks: a rank's `StepOutput` has only the prompts that it worked on."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch

from apo_lightning.common.process_group import num_processes

Part = TypeVar("Part")
Item = TypeVar("Item")


def from_all_ranks(part: Part) -> list[Part]:
    """Return every rank's part, in rank order, on every rank; collective. A single process gets its own part."""
    if num_processes() == 1:
        return [part]
    parts: list[Any] = [None] * num_processes()
    torch.distributed.all_gather_object(parts, part)
    return parts


def items_of_all_ranks(items: Sequence[Item]) -> list[Item]:
    """Return the items of all ranks, in rank order, on every rank; collective."""
    return [item for part in from_all_ranks(items) for item in part]

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


def in_rollout_order(parts: Sequence[Sequence[Item]], group_size: int) -> list[Item]:
    """One item a completion, from the parts of all ranks, in the order of the rollout: ranks take its prompts in turn.

    Example:
        >>> in_rollout_order([["a1", "a2", "c1", "c2"], ["b1", "b2", "d1", "d2"]], group_size=2)
        ['a1', 'a2', 'b1', 'b2', 'c1', 'c2', 'd1', 'd2']
    """
    groups = ([part[start : start + group_size] for start in range(0, len(part), group_size)] for part in parts)
    return [item for turn in zip(*groups, strict=True) for group in turn for item in group]


def items_of_all_ranks(items: Sequence[Item]) -> list[Item]:
    """Return the items of all ranks, in rank order, on every rank; collective."""
    return [item for part in from_all_ranks(items) for item in part]

"""The ranks of a run: shares of prompts, reductions, gathered records, and rows that move between ranks and back.

A rank's `StepOutput` has only the prompts that it worked on.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from apo_lightning.common.process_group import num_processes

Item = TypeVar("Item")


class Ranks:
    """The processes of a run. With one process every method is the identity."""

    def __init__(self, trainer: pl.Trainer) -> None:
        self.trainer = trainer
        self.rank = trainer.global_rank
        self.world_size = trainer.world_size

    def share(self, items: Sequence[Item], items_per_minibatch: int) -> list[Item]:
        """This rank's part of each mini-batch: every mini-batch is spread over all ranks.

        Mini-batches are formed before they are divided, so the number of ranks does not change the training.
        """
        return [item for i, item in enumerate(items) if self.owner(i, items_per_minibatch) == self.rank]

    def owner(self, place: int, items_per_minibatch: int) -> int:
        """The rank that `share` gives the item at this place."""
        return (place % items_per_minibatch) % self.world_size

    def sum(self, value: float | int) -> float:
        """The sum of a value over all ranks; collective."""
        return self.sums([value])[0]

    def sums(self, values: Sequence[float | int]) -> list[float]:
        """The element-wise sum of several values over all ranks; collective."""
        if self.world_size == 1:
            return [float(value) for value in values]
        return self._reduce(values, torch.distributed.ReduceOp.SUM).tolist()

    def max(self, value: float | int) -> float:
        """The maximum of a value over all ranks; collective."""
        return float(value) if self.world_size == 1 else float(self._reduce([value], torch.distributed.ReduceOp.MAX))

    def equalize(self, tensors: Iterable[Tensor]) -> None:
        """Give every rank the first rank's values, in place; collective."""
        if self.world_size > 1:
            for tensor in tensors:
                torch.distributed.broadcast(tensor.detach(), 0)

    def reduce_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by its mean over all ranks, 0 on one that has none; collective."""
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            if self.world_size > 1:
                torch.distributed.all_reduce(parameter.grad)
                parameter.grad /= self.world_size

    def finish_queued(self) -> None:
        """Wait until this rank's GPU has done all that it was told to."""
        if self.trainer.strategy.root_device.type == "cuda":
            torch.cuda.synchronize(self.trainer.strategy.root_device)

    def _reduce(self, values: Sequence[float | int], operation: torch.distributed.ReduceOp.RedOpType) -> Tensor:
        tensor = torch.tensor(values, dtype=torch.float64, device=self.trainer.strategy.root_device)
        torch.distributed.all_reduce(tensor, op=operation)
        return tensor


def from_all_ranks(item: Item) -> list[Item]:
    """Return every rank's item, in rank order, on every rank; collective. A single process gets its own."""
    if num_processes() == 1:
        return [item]
    items: list[Any] = [None] * num_processes()
    torch.distributed.all_gather_object(items, item)
    return items


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


class Exchange:
    """Moves rows between ranks: `send` to the ranks that work on them, `send_back` to the ranks they came from.

    Received rows are ordered by source rank, then by their order there. With one process both methods return their
    argument.

    Args:
        destinations: for each rank, the destination rank of each of its items; equal on all ranks.
        sizes: for each rank, the number of rows of each of its items; equal on all ranks.
        rank: of this process.
        device: on which the process group communicates.
    """

    def __init__(
        self, destinations: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]], rank: int, device: torch.device
    ) -> None:
        rows = torch.tensor(destinations[rank]).repeat_interleave(torch.tensor(sizes[rank]))
        self.device = device
        self._is_alone = len(destinations) == 1
        self._order = rows.argsort(stable=True).to(device)
        self._num_sent = rows.bincount(minlength=len(destinations)).tolist()
        self._num_received = [
            sum(size for destination, size in zip(*items, strict=True) if destination == rank)
            for items in zip(destinations, sizes, strict=True)
        ]

    def send(self, rows: Tensor) -> Tensor:
        """Send this rank's rows [R, …] to their destinations; returns those for this rank to work on; collective."""
        if self._is_alone:
            return rows
        return self._exchanged(rows.to(self.device)[self._order], self._num_sent, self._num_received).to(rows.device)

    def send_back(self, rows: Tensor) -> Tensor:
        """Return rows, one per row that `send` returned, to the ranks they came from; collective."""
        if self._is_alone:
            return rows
        received = self._exchanged(rows.to(self.device), self._num_received, self._num_sent)
        return torch.empty_like(received).index_copy_(0, self._order, received).to(rows.device)

    def _exchanged(self, rows: Tensor, num_sent: list[int], num_received: list[int]) -> Tensor:
        received = rows.new_empty(sum(num_received), *rows.shape[1:])
        # Some backends do not support bool.
        as_bytes = [t.view(torch.uint8) if t.dtype == torch.bool else t for t in (received, rows.contiguous())]
        torch.distributed.all_to_all_single(as_bytes[0], as_bytes[1], num_received, num_sent)
        return received

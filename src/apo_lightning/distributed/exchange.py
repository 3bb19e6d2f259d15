"""Moving rows of tensors to the ranks that work on them, and back; and objects."""

import pickle
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks


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


def exchange_objects(objects: Sequence[Any], device: torch.device) -> list[Any]:
    """Send one object to each rank, in rank order; returns what each rank sent to this one; collective.

    Unlike a gather, it holds on each rank only what was sent there.

    Args:
        objects: one a rank; they are pickled, unless there is one rank.
        device: on which the process group communicates.
    """
    if len(objects) == 1:
        return list(objects)
    sent = [torch.frombuffer(bytearray(pickle.dumps(item)), dtype=torch.uint8) for item in objects]
    sizes = from_all_ranks([len(part) for part in sent])
    num_received = [row[process_rank()] for row in sizes]
    received = torch.empty(sum(num_received), dtype=torch.uint8, device=device)
    torch.distributed.all_to_all_single(
        received, torch.cat(sent).to(device), num_received, [len(part) for part in sent]
    )
    return [pickle.loads(part.numpy().tobytes()) for part in received.cpu().split(num_received)]

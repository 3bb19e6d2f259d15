"""Moving rows of tensors to the ranks that work on them, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor


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

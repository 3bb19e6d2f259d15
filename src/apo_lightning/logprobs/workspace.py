"""What a forward keeps for its backward, the sums of gradients, and what the chunks of one micro-batch share."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from apo_lightning.logprobs.head import LOGITS_HELD, LOGITS_HELD_CPU, Head, add_product_, matmul

Tiles = dict[tuple[int, int], tuple[Tensor, Tensor]]
"""(first token, first column) → exp(z − m) of a tile, and the m at that time."""


class HeldLogits:
    """Tiles kept for the backward, which overwrites them; their memory is used again by the next forward.

    Args:
        capacity: largest number of logits to hold.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tiles: Tiles = {}
        self._buffers: list[Tensor] = []

    def begin(self) -> Tiles:
        """The tiles of a new forward, none yet. Those of an earlier one are dropped: its backward recomputes them."""
        self._tiles.clear()
        self._tiles = {}
        return self._tiles

    def buffer(self, index: int, head: Head) -> Tensor | None:
        """Memory for the tile of this number; None where compiled kernels allocate it themselves."""
        if not head.overwrites_tiles:
            return None
        if index == len(self._buffers) or self._buffers[index].numel() < head.tile_size:
            self._buffers[index : index + 1] = [head.buffer()]
        return self._buffers[index]


@dataclass
class WeightGradient:
    """∂L/∂W, one part of the vocabulary after another; the first pass writes, so that no memory is cleared first."""

    total: Tensor
    """In the state dtype; rows from `num_written` on are not initialised."""
    num_written: int = 0

    def add(self, columns: slice, left: Tensor, right: Tensor) -> None:
        """Add left · right to these vocabulary columns; a pass goes through the vocabulary in order."""
        part = self.total[columns]
        if columns.start < self.num_written:
            add_product_(part, left, right)
        else:
            matmul(left, right, part.dtype, part)
            self.num_written = columns.stop

    def finish(self) -> Tensor:
        """The whole gradient; rows that got none are 0."""
        self.total[self.num_written :] = 0
        self.num_written = len(self.total)
        return self.total


@dataclass
class Workspace:
    """What the chunks of one micro-batch share.

    Attributes:
        gradient: ∂L/∂W so far; None: the head is frozen.
        held: the logits of the current chunk.
    """

    gradient: WeightGradient | None
    held: HeldLogits


class HeadGradient:
    """∂L/∂h and ∂L/∂W, summed tile by tile in float32, as bfloat16 would lose most of a long sum.

    Args:
        head: the head.
        wanted: whether `finish` gives ∂L/∂h and ∂L/∂W.
        workspace: of the calling `DetachedHead`, which collects ∂L/∂W; None: `finish` gives it.
    """

    def __init__(self, head: Head, wanted: Sequence[bool], workspace: Workspace | None) -> None:
        self._head = head
        self._hidden = torch.zeros_like(head.hidden, dtype=head.state_dtype) if wanted[0] else None
        self._own = WeightGradient(torch.empty_like(head.weight, dtype=head.state_dtype)) if wanted[1] else None
        self._weight = self._own if workspace is None else workspace.gradient

    def add(self, rows: slice | Tensor, columns: slice, weight_tile: Tensor, grad_logits: Tensor) -> None:
        """Add the gradient ∂L/∂(τ·z) of one tile; `rows` is an index where its tokens are not contiguous."""
        head = self._head
        grad_logits = grad_logits.to(head.compute_dtype)
        if self._hidden is not None:
            if isinstance(rows, slice):
                add_product_(self._hidden[rows], grad_logits, weight_tile)
            else:
                self._hidden.index_add_(0, rows, matmul(grad_logits, weight_tile, head.state_dtype))
        if self._weight is not None:
            self._weight.add(columns, grad_logits.T, head.rows_operand[rows])

    def finish(self) -> tuple[Tensor | None, Tensor | None]:
        """∂L/∂h and ∂L/∂W in the dtypes of h and W, None where not wanted."""
        # Autograd would copy a gradient that is referred to from here too.
        hidden, self._hidden = self._hidden, None
        weight = None if self._own is None else self._own.finish().to(self._head.weight.dtype)
        return None if hidden is None else hidden.to(self._head.hidden.dtype), weight


def num_held(device: torch.device, compute_dtype: torch.dtype) -> int:
    """Largest number of logits to hold on a device, given the dtype of matrix products."""
    if device.type != "cpu":
        return LOGITS_HELD
    return LOGITS_HELD_CPU * (2 if compute_dtype.itemsize < torch.float32.itemsize else 1)

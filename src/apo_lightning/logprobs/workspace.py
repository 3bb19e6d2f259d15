"""Memory of the head that is kept between forward and backward, and between the chunks of one micro-batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from apo_lightning.logprobs.head import LOGITS_HELD, LOGITS_HELD_CPU, Head, WeightGradient

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
class Workspace:
    """What the chunks of one micro-batch share.

    Attributes:
        gradient: ∂L/∂W so far; None: the head is frozen.
        held: the logits of the current chunk.
    """

    gradient: WeightGradient | None
    held: HeldLogits


def num_held(device: torch.device, compute_dtype: torch.dtype) -> int:
    """Largest number of logits to hold on a device, given the dtype of matrix products."""
    if device.type != "cpu":
        return LOGITS_HELD
    return LOGITS_HELD_CPU * (2 if compute_dtype.itemsize < torch.float32.itemsize else 1)

"""What is kept of the head between forward and backward, and between the chunks of one micro-batch."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.logprobs.head import LOGITS_HELD, LOGITS_HELD_CPU, Head, WeightGradient

Tiles = dict[tuple[int, int], tuple[Tensor, Tensor]]
"""(first token, first column) → exp(z − m) of a tile, and the m that it was taken against."""


@dataclass
class HeldLogits:
    """Tiles that wait for their backward, in memory that is used again once they are taken or overtaken.

    Attributes:
        capacity: how many logits may be held.
        tiles: those of the latest forward.
    """

    capacity: int
    tiles: Tiles = field(default_factory=dict)
    _rooms: list[Tensor] = field(default_factory=list)
    _num_used: int = 0
    _turn: int = 0
    _is_open: bool = False

    def begin(self, has_backward: bool) -> int:
        """A forward begins, whose number it returns; whatever an earlier one has left is given up."""
        self.tiles = {}
        self._num_used, self._is_open = 0, has_backward
        self._turn += 1
        return self._turn

    def reserve(self, head: Head) -> bool:
        """Whether the next tile is to be held: something will come back for it, and there is room."""
        tile = head.tile_shape[0] * head.tile_shape[1]
        if not self._is_open or (self._num_used + 1) * tile > self.capacity:
            return False
        self._num_used += 1
        return True

    def room(self, head: Head) -> Tensor | None:
        """Memory for the tile that was reserved last; None: its kernels bring it."""
        if not head.overwrites_tiles:
            return None
        index = self._num_used - 1
        if index == len(self._rooms) or self._rooms[index].numel() < head.tile_shape[0] * head.tile_shape[1]:
            self._rooms[index : index + 1] = [head.buffer()]
        return self._rooms[index]

    def take(self, turn: int) -> Tiles:
        """The tiles of that forward, once: a backward overwrites them. Nothing where another forward came between."""
        if turn != self._turn:
            return {}
        tiles, self.tiles = self.tiles, {}
        return tiles


@dataclass
class Workspace:
    """What the chunks of one micro-batch share.

    Attributes:
        weight: the head in its compute dtype, cast once for all chunks.
        gradient: ∂L/∂W so far; None: the head is frozen.
        held: the logits of the chunk at work.
    """

    weight: Float[Tensor, "vocab hidden"]
    gradient: WeightGradient | None
    held: HeldLogits


def num_held(device: torch.device, compute_dtype: torch.dtype) -> int:
    """How many logits may be held on such a device, with products in such a dtype."""
    if device.type != "cpu":
        return LOGITS_HELD
    return LOGITS_HELD_CPU * (2 if compute_dtype.itemsize < torch.float32.itemsize else 1)


def head_of(
    hidden: Tensor,
    head_weight: Tensor,
    temperature: float | int,
    compute_dtype: torch.dtype,
    workspace: Workspace | None,
) -> Head:
    """The head over some tokens, which a workspace takes in one row of tiles."""
    if workspace is None:
        return Head(hidden, head_weight, temperature, compute_dtype)
    head = Head(hidden, workspace.weight, temperature, compute_dtype)
    head.tile_shape = (max(1, len(hidden)), head.tile_shape[1])
    return head


def weight_gradient(
    head_weight: Tensor, head: Head, workspace: Workspace | None, *, wanted: bool
) -> WeightGradient | None:
    """Where ∂L/∂W is added to: float32 until its end, since bfloat16 would lose most of a long sum."""
    if workspace is not None:
        return workspace.gradient
    return WeightGradient(torch.empty_like(head_weight, dtype=head.state_dtype)) if wanted else None


def returned_gradient(
    gradient: WeightGradient | None, head_weight: Tensor, workspace: Workspace | None
) -> Float[Tensor, "vocab hidden"] | None:
    """What a backward says of the head itself; None: nothing, or it is the workspace's to say."""
    return None if gradient is None or workspace is not None else gradient.finish().to(head_weight.dtype)

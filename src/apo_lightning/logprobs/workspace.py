"""Memory of the head that is kept between forward and backward, and between the chunks of one micro-batch."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.logprobs.head import LOGITS_HELD, LOGITS_HELD_CPU, Head, WeightGradient

Tiles = dict[tuple[int, int], tuple[Tensor, Tensor]]
"""(first token, first column) → exp(z − m) of a tile, and the m at that time."""


@dataclass
class HeldLogits:
    """Tiles kept for the backward. Their memory is reused once the tiles are taken or a new forward begins.

    Attributes:
        capacity: largest number of logits to hold.
        tiles: those of the latest forward.
    """

    capacity: int
    tiles: Tiles = field(default_factory=dict)
    _buffers: list[Tensor] = field(default_factory=list)
    _num_used: int = 0
    _forward_id: int = 0
    _has_backward: bool = False

    def begin(self, has_backward: bool) -> int:
        """Start a forward and return its id; drops the tiles of an earlier forward."""
        self.tiles = {}
        self._num_used, self._has_backward = 0, has_backward
        self._forward_id += 1
        return self._forward_id

    def reserve(self, head: Head) -> bool:
        """Reserve memory for the next tile; False where no backward follows or the capacity is used up."""
        tile = head.tile_shape[0] * head.tile_shape[1]
        if not self._has_backward or (self._num_used + 1) * tile > self.capacity:
            return False
        self._num_used += 1
        return True

    def buffer(self, head: Head) -> Tensor | None:
        """Memory for the tile reserved last; None where compiled kernels allocate it themselves."""
        if not head.overwrites_tiles:
            return None
        index = self._num_used - 1
        if index == len(self._buffers) or self._buffers[index].numel() < head.tile_shape[0] * head.tile_shape[1]:
            self._buffers[index : index + 1] = [head.buffer()]
        return self._buffers[index]

    def take(self, forward_id: int) -> Tiles:
        """The tiles of that forward, once, as a backward overwrites them; none after a later forward began."""
        if forward_id != self._forward_id:
            return {}
        tiles, self.tiles = self.tiles, {}
        return tiles


@dataclass
class Workspace:
    """Memory that the chunks of one micro-batch share.

    Attributes:
        weight: the head in its compute dtype, cast once for all chunks.
        gradient: ∂L/∂W so far; None: the head is frozen.
        held: the logits of the current chunk.
    """

    weight: Float[Tensor, "vocab hidden"]
    gradient: WeightGradient | None
    held: HeldLogits


def num_held(device: torch.device, compute_dtype: torch.dtype) -> int:
    """Largest number of logits to hold on a device, given the dtype of matrix products."""
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
    """The head over some tokens; with a workspace, all of them are in one row of tiles."""
    if workspace is None:
        return Head(hidden, head_weight, temperature, compute_dtype)
    head = Head(hidden, workspace.weight, temperature, compute_dtype)
    head.tile_shape = (max(1, len(hidden)), head.tile_shape[1])
    return head


def weight_gradient(
    head_weight: Tensor, head: Head, workspace: Workspace | None, *, wanted: bool
) -> WeightGradient | None:
    """The accumulator of ∂L/∂W: the workspace's, or a new one in float32, as bfloat16 would lose most of a long sum."""
    if workspace is not None:
        return workspace.gradient
    return WeightGradient(torch.empty_like(head_weight, dtype=head.state_dtype)) if wanted else None


def returned_gradient(
    gradient: WeightGradient | None, head_weight: Tensor, workspace: Workspace | None
) -> Float[Tensor, "vocab hidden"] | None:
    """∂L/∂W as a backward returns it; None where it is not wanted or the workspace collects it."""
    return None if gradient is None or workspace is not None else gradient.finish().to(head_weight.dtype)

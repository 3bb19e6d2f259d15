"""The language-model head in tiles (some tokens × a part of the vocabulary): logits, kept logits, and gradients."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from apo_lightning.common.compiling import compile_or_fail
from apo_lightning.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")
MakeHead = Callable[[Tensor, Tensor], "Head"]
"""(hidden states, matrix) → a head; forward and backward make the same one."""

TILE_ROWS_CPU, TILE_ROWS = 512, 4096
"""Most tokens of a tile, on a CPU and elsewhere. With fewer, a product is bound by reading the head's rows."""
TILE_LOGITS_CPU, TILE_LOGITS = 2**20, 2**25
"""Most logits of a tile: 4 MiB on a CPU, which stay in the caches together with the rows of the head; elsewhere
128 MiB, as the calls of smaller tiles cost the host of an H200 more than the GPU's second-level cache saves."""
FEWEST_LOGITS_CPU = 2**16
"""For smaller tiles the calls would cost a CPU more than the arithmetic."""
COLUMNS_MULTIPLE = 128
"""Matrix products of a GPU are slower where rows of the result are not aligned to this many columns."""
LOGITS_HELD_CPU = 2**23
"""Most logits kept between forward and backward on a CPU: 32 MiB. Twice as many where products run in bfloat16: they
are so fast that reading and writing ∂L/∂W once a chunk would take as long."""
LOGITS_HELD = 5 * 2**27
"""The same on a GPU: 2.5 GiB, for as many tokens as a tile has at V = 152,064. With chunks of 880 tokens, reading and
writing ∂L/∂W would take a third of the time of the products."""
ROWS_MULTIPLE = 16
"""Matrix products are slower for other numbers of tokens."""


@dataclass
class Head:
    """z = h·Wᵀ/τ, one tile at a time.

    Autocast does not apply inside: the backward runs outside of it, and both passes must use one dtype.

    Raises:
        ConfigError: the temperature is not positive.
    """

    hidden: Tensor
    weight: Tensor
    """In the compute dtype, or in another one and cast tile by tile."""
    temperature: float | int
    compute_dtype: torch.dtype

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise ConfigError(f"temperature is {self.temperature}: probabilities need one above 0")
        self.state_dtype = torch.promote_types(self.compute_dtype, torch.float32)
        self.rows_operand = self.hidden.to(self.compute_dtype)
        self.tile_shape = tile_shape(len(self.hidden), len(self.weight), self.hidden.device)
        self.tile_size = math.prod(self.tile_shape)
        self.overwrites_tiles = overwrites_tiles(self.hidden.device)

    def row_tiles(self) -> Iterator[slice]:
        """Slices of the tokens, one per tile; one empty slice where there are none."""
        return slices(max(1, len(self.hidden)), self.tile_shape[0])

    def column_tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """(columns, `weight_tile` of them) over the whole vocabulary."""
        for columns in slices(len(self.weight), self.tile_shape[1]):
            yield columns, self.weight_tile(columns)

    def weight_tile(self, columns: slice) -> Tensor:
        """The rows of W for these vocabulary columns, in the compute dtype."""
        return self.weight[columns].to(self.compute_dtype)

    def logits(self, rows: slice | Tensor, weight_tile: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, columns] in the state dtype, which the caller may overwrite; `out`: a buffer at least as large."""
        logits = matmul(self.rows_operand[rows], weight_tile.T, self.state_dtype, out)
        # Dividing by 1 changes nothing and would read all logits once more.
        return logits if self.temperature == 1 else logits.div_(self.temperature)

    def buffer(self) -> Tensor:
        """Memory for the logits of one tile: allocating it per tile would cost a CPU more than the arithmetic."""
        return self.hidden.new_empty(self.tile_shape, dtype=self.state_dtype)

    def scratch(self) -> Tensor | None:
        """A second buffer, for values computed from the logits; None where compiled kernels allocate it themselves."""
        return self.buffer() if self.overwrites_tiles else None


def tile_shape(num_tokens: int, vocab_size: int, device: torch.device) -> tuple[int, int]:
    """Size of one tile (tokens, vocabulary): as many tokens as allowed, then as many columns as the limit leaves.

    On a CPU no tile holds more than 1/32 of all logits, unless there are few.

    Example:
        >>> tile_shape(num_tokens=1024, vocab_size=49152, device=torch.device("cpu"))
        (512, 2048)
        >>> tile_shape(num_tokens=514, vocab_size=49152, device=torch.device("cpu"))
        (257, 3072)
        >>> tile_shape(num_tokens=8192, vocab_size=152064, device=torch.device("cuda"))
        (4096, 8192)
    """
    rows = even_share(num_tokens, most_rows(device))
    wanted = TILE_LOGITS
    if device.type == "cpu":
        wanted = min(TILE_LOGITS_CPU, max(num_tokens * vocab_size // 32, FEWEST_LOGITS_CPU))
    columns = wanted // rows
    columns -= columns % COLUMNS_MULTIPLE if columns > COLUMNS_MULTIPLE else 0
    return rows, max(1, min(columns, vocab_size))


def most_rows(device: torch.device) -> int:
    """Most tokens of a tile on a device."""
    return TILE_ROWS_CPU if device.type == "cpu" else TILE_ROWS


def overwrites_tiles(device: torch.device) -> bool:
    """Whether element-wise work reuses the tile's memory; otherwise compiled kernels write to new memory."""
    return device.type == "cpu"


def tile_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Decorates element-wise work on a tile: compiled on a GPU, where each operation would read and write the tile."""
    compiled = cache(lambda: compile_or_fail(function))  # imports torch's compiler: seconds

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        is_cuda = isinstance(first, Tensor) and first.is_cuda
        return (compiled() if is_cuda else function)(*args, **kwargs)

    return run


def compute_dtype_of(hidden: Tensor, head_weight: Tensor) -> torch.dtype:
    """The dtype of matrix products, as in a linear layer: autocast's where it is on, except for float64."""
    dtype = torch.promote_types(hidden.dtype, head_weight.dtype)
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and dtype != torch.float64 else dtype


def matmul(left: Tensor, right: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """left · right in `dtype`; on a GPU a bfloat16 product is accumulated and returned without rounding to bfloat16."""
    shape = len(left), right.shape[1]
    out = left.new_empty(shape, dtype=dtype) if out is None else part_of(out, shape)
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == dtype:
            return torch.mm(left, right, out=out)
        if left.device.type == "cpu":
            return out.copy_(torch.mm(left, right))
        return torch.mm(left, right, out_dtype=dtype, out=out)


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right, summed in total's dtype."""
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == total.dtype:
            torch.addmm(total, left, right, out=total)  # addmm_ would be missed by torch's counter of operations
        elif left.device.type == "cpu":
            total.add_(torch.mm(left, right))
        else:
            # A separate sum would read and write the total twice as often.
            torch.addmm(total, left, right, out_dtype=total.dtype, out=total)


def part_of(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The beginning of a buffer in another shape; tiles at the edges are smaller."""
    return buffer.flatten()[: math.prod(shape)].view(shape)


def even_share(length: int, most: int) -> int:
    """Length of the pieces when `length` is split into as few pieces ≤ `most` as possible, of nearly equal length.

    Example:
        >>> even_share(514, most=512), even_share(12, most=512), even_share(0, most=512)
        (257, 12, 1)
    """
    return max(1, -(-length // max(1, -(-length // most))))


def slices(length: int, step: int) -> Iterator[slice]:
    """Consecutive slices of `step` that cover 0 to `length`; the last may be shorter."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))


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

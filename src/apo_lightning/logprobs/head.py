"""The language-model head in tiles, some tokens by some of the vocabulary: logits forward, their gradient backward."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from apo_lightning.errors import ConfigError

P = ParamSpec("P")
R = TypeVar("R")

TILE_ROWS_CPU, TILE_ROWS = 512, 4096
"""Tokens of one tile at most, on a CPU and elsewhere: a product of few tokens reads the head's rows for longer than it
multiplies with them."""
TILE_LOGITS_CPU = 2**20
"""Logits of one tile at most: on a CPU 4 MiB, which stay in the caches with the rows of the head beside them …"""
TILE_LOGITS = 2**23
"""… and elsewhere 32 MiB, which stay in the second-level cache of a large GPU between the kernels that pass over
them."""
FEWEST_LOGITS_CPU = 2**16
"""Of smaller tiles the calls would cost more than the arithmetic; a GPU would wait for the launches of any smaller
than the largest."""
COLUMNS_MULTIPLE = 128
"""A GPU's products are slower where rows of the result do not begin at such places."""
LOGITS_HELD_CPU = 2**23
"""Logits that may be held between making them and taking their gradient: 32 MiB, twice as many where products run in
bfloat16, so fast that ∂L/∂W, which is read and written once a chunk, would take as long …"""
LOGITS_HELD = 5 * 2**27
"""… and on a GPU 2.5 GiB, of as many tokens as a tile has, at V = 152,064: of 880 tokens at once it would read and
write ∂L/∂W for a third as long as it multiplies."""
ROWS_MULTIPLE = 16
"""Matrix products are slower for other numbers of tokens."""


@dataclass
class Head:
    """z = h·Wᵀ/τ, a tile at a time.

    Autograd is elsewhere, so autocast is too: the backward runs outside of it, and both must use one dtype.
    """

    hidden: Tensor
    weight: Tensor
    """In its own dtype, and cast tile by tile, or in the compute dtype."""
    temperature: float | int
    compute_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.state_dtype = torch.promote_types(self.compute_dtype, torch.float32)
        self.rows_operand = self.hidden.to(self.compute_dtype)
        self.tile_shape = tile_shape(len(self.hidden), len(self.weight), self.hidden.device)
        self.overwrites_tiles = overwrites_tiles(self.hidden.device)

    def row_tiles(self) -> Iterator[slice]:
        """Tokens, a tile's worth at a time; of no tokens one empty tile."""
        return slices(max(1, len(self.hidden)), self.tile_shape[0])

    def column_tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """(columns, the rows of W that make them), a tile's worth of the vocabulary at a time."""
        for columns in slices(len(self.weight), self.tile_shape[1]):
            yield columns, self.weight_tile(columns)

    def weight_tile(self, columns: slice) -> Tensor:
        """The rows of W that make these columns, in the compute dtype."""
        return self.weight[columns].to(self.compute_dtype)

    def logits(self, rows: slice | Tensor, weight_tile: Tensor, out: Tensor | None = None) -> Tensor:
        """[rows, columns] in the state dtype, the caller's to overwrite; `out` is a buffer of at least that size."""
        logits = matmul(self.rows_operand[rows], weight_tile.T, self.state_dtype, out)
        # Dividing by 1 changes nothing and would read all logits once more.
        return logits if self.temperature == 1 else logits.div_(self.temperature)

    def buffer(self) -> Tensor:
        """Room for the logits of one tile: fresh memory for each would cost a CPU more than the arithmetic on it."""
        return self.hidden.new_empty(self.tile_shape, dtype=self.state_dtype)

    def scratch(self) -> Tensor | None:
        """Room for what is made of the logits, where that is not up to the kernels."""
        return self.buffer() if self.overwrites_tiles else None


@dataclass
class WeightGradient:
    """∂L/∂W, a part of the vocabulary after the other: the first pass writes, so that nothing is cleared before it."""

    total: Tensor
    """In the state dtype; from `num_written` on its numbers mean nothing."""
    num_written: int = 0

    def add(self, columns: slice, left: Tensor, right: Tensor) -> None:
        """Take in the product of a tile; passes go through the vocabulary in order."""
        part = self.total[columns]
        if columns.start < self.num_written:
            add_product_(part, left, right)
        else:
            matmul(left, right, part.dtype, part)
            self.num_written = columns.stop

    def finish(self) -> Tensor:
        """The whole; 0 where nothing came."""
        self.total[self.num_written :] = 0
        self.num_written = len(self.total)
        return self.total


class HeadGradient:
    """∂L/∂h and ∂L/∂W, gathered tile by tile.

    Sums are float32 until the end: bfloat16 would lose most of a long sum.

    Args:
        head: whose gradient it is.
        hidden: whether ∂L/∂h is wanted.
        weight: what ∂L/∂W is added to; None: the head is frozen.
    """

    def __init__(self, head: Head, *, hidden: bool, weight: WeightGradient | None) -> None:
        self._head = head
        self._hidden = torch.zeros_like(head.hidden, dtype=head.state_dtype) if hidden else None
        self._weight = weight

    def add(self, rows: slice | Tensor, columns: slice, weight_tile: Tensor, grad_logits: Tensor) -> None:
        """Take in the gradient of a tile.

        Args:
            rows: its tokens; an index where they do not stand in a row.
            columns: its part of the vocabulary.
            weight_tile: the head there, in the compute dtype.
            grad_logits: ∂L/∂(τ·z).
        """
        head = self._head
        grad_logits = grad_logits.to(head.compute_dtype)
        if self._hidden is not None:
            if isinstance(rows, slice):
                add_product_(self._hidden[rows], grad_logits, weight_tile)
            else:
                self._hidden.index_add_(0, rows, matmul(grad_logits, weight_tile, head.state_dtype))
        if self._weight is not None:
            self._weight.add(columns, grad_logits.T, head.rows_operand[rows])

    def take_hidden(self) -> Tensor | None:
        """∂L/∂h in the dtype of h.

        Nothing here refers to it any more: autograd copies a gradient that someone else still holds.
        """
        hidden, self._hidden = self._hidden, None
        return None if hidden is None else hidden.to(self._head.hidden.dtype)


def tile_shape(num_tokens: int, vocab_size: int, device: torch.device) -> tuple[int, int]:
    """Tokens by vocabulary of one tile: as many tokens as fit, and of the vocabulary what is left to them.

    On a CPU no tile holds more than a 32nd of all logits, unless those are few.

    Example:
        >>> tile_shape(num_tokens=1024, vocab_size=49152, device=torch.device("cpu"))
        (512, 2048)
        >>> tile_shape(num_tokens=514, vocab_size=49152, device=torch.device("cpu"))
        (257, 3072)
        >>> tile_shape(num_tokens=256, vocab_size=49152, device=torch.device("cpu"))
        (256, 1536)
        >>> tile_shape(num_tokens=8, vocab_size=80, device=torch.device("cpu"))
        (8, 80)
        >>> tile_shape(num_tokens=8192, vocab_size=152064, device=torch.device("cuda"))
        (4096, 2048)
    """
    is_cpu = device.type == "cpu"
    rows = even_share(num_tokens, most_rows(device))
    wanted = TILE_LOGITS
    if is_cpu:
        wanted = min(TILE_LOGITS_CPU, max(num_tokens * vocab_size // 32, FEWEST_LOGITS_CPU))
    columns = wanted // rows
    columns -= columns % COLUMNS_MULTIPLE if columns > COLUMNS_MULTIPLE else 0
    return rows, max(1, min(columns, vocab_size))


def most_rows(device: torch.device) -> int:
    """Tokens of one tile at most."""
    return TILE_ROWS_CPU if device.type == "cpu" else TILE_ROWS


def overwrites_tiles(device: torch.device) -> bool:
    """Whether element-wise work is done in the tile's own memory: else by compiled kernels, from memory to memory."""
    return device.type == "cpu"


def tile_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """Element-wise work on a tile, compiled into few passes over it on a GPU; as it stands it is the reference.

    Eager, a tile would be read and written once an operation, which costs a GPU as much as the matrix products.
    """
    compiled = cache(lambda: torch.compile(function, dynamic=True))  # imports torch's compiler: seconds

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        first = args[0]
        is_cuda = isinstance(first, Tensor) and first.is_cuda
        return (compiled() if is_cuda else function)(*args, **kwargs)

    return run


def compute_dtype_of(hidden: Tensor, head_weight: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's where it is on, except for float64, as in a linear layer."""
    dtype = torch.promote_types(hidden.dtype, head_weight.dtype)
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and dtype != torch.float64 else dtype


def check_temperature(temperature: float | int) -> None:
    """Refuse a temperature that makes no distribution."""
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}: probabilities need one above 0")


def matmul(left: Tensor, right: Tensor, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """The product in `dtype`: on a GPU the sums of a bfloat16 product are never rounded to bfloat16."""
    if out is not None:
        out = part_of(out, (len(left), right.shape[1]))
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == dtype:
            return torch.mm(left, right) if out is None else torch.mm(left, right, out=out)
        if left.device.type == "cpu":
            product = torch.mm(left, right)
            return product.to(dtype) if out is None else out.copy_(product)
        return torch.mm(left, right, out_dtype=dtype, out=out)


def add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left · right, summed in total's dtype."""
    with torch.autocast(left.device.type, enabled=False):
        if left.dtype == total.dtype:
            torch.addmm(total, left, right, out=total)  # addmm_ would be missed by torch's counter of operations
        elif left.device.type == "cpu":
            total.add_(torch.mm(left, right))
        else:
            # A sum apart would read and write the total twice as often.
            torch.addmm(total, left, right, out_dtype=total.dtype, out=total)


def part_of(buffer: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The beginning of a buffer, in another shape: tiles at the edges are smaller."""
    return buffer.flatten()[: math.prod(shape)].view(shape)


def even_share(length: int, most: int) -> int:
    """The length of few pieces of nearly equal length, at most so long; the last may be shorter, none is empty.

    Example:
        >>> even_share(514, most=512), even_share(12, most=512), even_share(0, most=512)
        (257, 12, 1)
    """
    return max(1, -(-length // max(1, -(-length // most))))


def slices(length: int, step: int) -> Iterator[slice]:
    """0 to `length` in slices of `step`, the last one as long as is left."""
    for start in range(0, length, step):
        yield slice(start, min(start + step, length))

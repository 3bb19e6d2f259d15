"""The language-model head, some tokens at a time: logits forward, their gradient backward."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from apo_lightning.errors import ConfigError

CHUNK_ELEMENTS_CPU = 2**22
"""Logits held at once: on a CPU what stays near the caches (16 MiB) …"""
CHUNK_ELEMENTS = 2**25
"""… and elsewhere what keeps matrix products large (128 MiB)."""
MIN_CHUNKS = 8
"""However few the tokens, a chunk holds no more than an eighth of their logits."""


@dataclass
class Head:
    """z = h·Wᵀ/τ, some rows at a time.

    Autograd is elsewhere, so autocast is too: the backward runs outside of it, and both must use one dtype.
    """

    hidden: Tensor
    weight: Tensor
    temperature: float | int
    compute_dtype: torch.dtype

    def __post_init__(self) -> None:
        self.state_dtype = torch.promote_types(self.compute_dtype, torch.float32)
        self.operand = self.weight.to(self.compute_dtype)

    def logits(self, rows: slice) -> Tensor:
        """[rows, V] in the state dtype, the caller's to overwrite."""
        product = _matmul(self.hidden[rows].to(self.compute_dtype), self.operand.T, self.state_dtype)
        return product.div_(self.temperature)

    def chunks(self) -> Iterator[tuple[slice, Tensor]]:
        """(rows, their logits), over all rows."""
        num_tokens = len(self.hidden)
        step = rows_per_chunk(num_tokens, len(self.weight), self.hidden.device)
        for start in range(0, num_tokens, step):
            rows = slice(start, min(start + step, num_tokens))
            yield rows, self.logits(rows)


class HeadGradient:
    """∂L/∂h and ∂L/∂W, gathered chunk by chunk; None where nobody asked."""

    def __init__(self, head: Head, wanted: tuple[bool, ...]) -> None:
        self._head = head
        self.hidden = torch.empty_like(head.hidden) if wanted[0] else None
        """In h's dtype."""
        self._weight = torch.zeros_like(head.weight, dtype=head.state_dtype) if wanted[1] else None

    def add(self, rows: slice, grad_logits: Tensor) -> None:
        """Take in ∂L/∂z of some rows."""
        head = self._head
        grad_logits = grad_logits.div_(head.temperature).to(head.compute_dtype)
        if self.hidden is not None:
            self.hidden[rows] = _matmul(grad_logits, head.operand, head.state_dtype)
        if self._weight is not None:
            _add_product_(self._weight, grad_logits.T, head.hidden[rows].to(head.compute_dtype))

    @property
    def weight(self) -> Tensor | None:
        """In W's dtype; summed in float32 until here, since bfloat16 would lose most of a long sum."""
        return None if self._weight is None else self._weight.to(self._head.weight.dtype)


def rows_per_chunk(num_tokens: int, vocab_size: int, device: torch.device) -> int:
    """How many tokens' logits are held at once.

    Example:
        >>> rows_per_chunk(num_tokens=4096, vocab_size=2**17, device=torch.device("cuda"))
        256
    """
    elements = CHUNK_ELEMENTS_CPU if device.type == "cpu" else CHUNK_ELEMENTS
    return max(1, min(elements // vocab_size, num_tokens // MIN_CHUNKS))


def compute_dtype_of(hidden: Tensor, head_weight: Tensor) -> torch.dtype:
    """The dtype of matrix products: autocast's where it is on, except for float64, as in a linear layer."""
    dtype = torch.promote_types(hidden.dtype, head_weight.dtype)
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) and dtype != torch.float64 else dtype


def check_temperature(temperature: float | int) -> None:
    """Refuse a temperature that makes no distribution."""
    if not temperature > 0:
        raise ConfigError(f"temperature is {temperature}: probabilities need one above 0")


def _matmul(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product in `dtype`: on a GPU the sums of a bfloat16 product are never rounded to bfloat16."""
    with torch.autocast(left.device.type, enabled=False):
        if left.is_cuda and left.dtype != dtype:
            return torch.mm(left, right, out_dtype=dtype)
        return torch.mm(left, right).to(dtype)


def _add_product_(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add left · right. A low-precision product goes by blocks: as a whole it would be one more head."""
    if left.dtype == total.dtype:
        with torch.autocast(left.device.type, enabled=False):
            total.addmm_(left, right)
        return
    step = max(1, CHUNK_ELEMENTS // total.shape[1])
    for start in range(0, len(total), step):
        block = slice(start, start + step)
        total[block] += _matmul(left[block], right, total.dtype)

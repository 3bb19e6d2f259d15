"""Softmax over tiles: its running state, and the gradient of the logits."""

from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.logprobs.head import Head, part_of, tile_kernel

LOWEST_LOGIT = -1e4
"""Replaces −∞ for z − max z: exp of it is 0 too, but 0 · (−∞) would be NaN."""
NOTHING_SEEN = -1e30
"""Initial value of the running maximum; −∞ − (−∞) would be NaN."""
PADDING_COLUMNS = 8
"""Columns appended to a tile for ids outside of it; 8 keep rows of bfloat16 aligned to 16 bytes, as products want."""


class Softmax:
    """Running softmax state of some tokens in a pass over the vocabulary.

    With u_v = z_v − m:   m = max z,   s = Σ exp(u_v),   d = Σ u_v·exp(u_v)

        log p_v = u_v − log s,   H = log s − d/s,   max p = 1/s

    Args:
        ids: vocabulary ids whose log-probs are wanted; −1: none.
        dtype: of the state.
    """

    def __init__(self, ids: Int[Tensor, "tokens picks"], dtype: torch.dtype) -> None:
        self.ids = ids
        self.largest = torch.full((len(ids),), NOTHING_SEEN, dtype=dtype, device=ids.device)
        self.total, self.dot = torch.zeros_like(self.largest), torch.zeros_like(self.largest)
        self.picked = torch.full(ids.shape, -torch.inf, dtype=dtype, device=ids.device)

    def update(
        self, columns: slice, logits: Tensor, buffer: Tensor | None, *, keeps: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Update the state with one tile.

        Args:
            columns: the tile's part of the vocabulary.
            logits: overwritten where a buffer is given.
            buffer: receives exp(z − m); None: new memory, if the result is kept.
            keeps: whether the caller needs exp(z − m); else it may be empty.

        Returns:
            exp(z − m) and the current m [tokens], which later tiles may still raise.
        """
        state = self.largest, self.total, self.dot, self.picked
        places = self.ids - columns.start
        if buffer is None:
            exp_logits, *state = _update(logits, *state, places, keeps)
        else:
            exp_logits, *state = _update_(logits, *state, places, part_of(buffer, logits.shape))
        self.largest, self.total, self.dot, self.picked = state
        return exp_logits, self.largest

    def normalise(self, logits: Tensor) -> Tensor:
        """Log-probs [tokens, any] of logits of the same tokens; after the last tile only."""
        return logits - self.largest.unsqueeze(1) - self.total.log().unsqueeze(1)

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """(log-probs at the ids, entropy, max-prob); after the last tile only."""
        log_sum = self.total.log()
        logprobs = self.normalise(self.picked)
        entropy = (log_sum - self.dot / self.total).clamp_(min=0.0)
        return logprobs.masked_fill_(self.ids < 0, -torch.inf), entropy, 1 / self.total


class LogitGradient:
    """∂L/∂z of some tokens, from their finished softmax and the gradients of their log-probs and entropies.

        ∂L/∂z_v = p_v·(α − g_H·log p_v) + Σ_k g_k·[v = id_k],   α = −Σ_k g_k − g_H·H

    With exp(u_v) = s·p_v it is exp(u_v)·(constant − slope·u_v) plus the sparse part. Constant and slope: [tokens, 1];
    without a gradient of the entropy there is no slope.
    """

    def __init__(
        self, softmax: Softmax, tokens: Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> None:
        self.ids, self.picked, total = softmax.ids[tokens], softmax.picked[tokens], softmax.total[tokens, None]
        self.largest, self.slope = softmax.largest[tokens, None], None
        # The gradient at an absent id may be anything, NaN included.
        grad_ids = torch.zeros_like(self.picked) if grad_logprobs is None else grad_logprobs
        self.grad_ids = torch.where(self.ids < 0, 0.0, grad_ids)
        self.constant = -self.grad_ids.sum(1, keepdim=True) / total
        if grad_entropy is not None:
            self.slope = grad_entropy[:, None] / total
            # H − log s = −d/s
            self.constant = self.constant + self.slope * softmax.dot[tokens, None] / total

    def of_tile(self, head: Head, columns: slice, exp_logits: Tensor, largest: Tensor) -> Tensor:
        """∂L/∂z of one tile from the two results of `Softmax.update`: in the memory of the first, or rounded in new."""
        shift, places = largest.unsqueeze(1) - self.largest, self.ids - columns.start
        if not head.overwrites_tiles:
            at_ids = self.at_ids.to(head.compute_dtype)
            return _from_exp_logits(exp_logits, shift, self.constant, self.slope, places, at_ids)
        gradient = _from_exp_logits_(exp_logits, shift, self.constant, self.slope)
        index, inside = positions(places, exp_logits.shape[1])
        return gradient.scatter_add_(1, index, self.grad_ids * inside)

    @cached_property
    def at_ids(self) -> Float[Tensor, "tokens picks"]:
        """∂L/∂z at the ids themselves."""
        shifted = (self.picked - self.largest).clamp(min=LOWEST_LOGIT)
        linear = self.constant if self.slope is None else self.constant - self.slope * shifted
        is_same = self.ids.unsqueeze(2) == self.ids.unsqueeze(1)
        return shifted.exp() * linear + (is_same * self.grad_ids.unsqueeze(1)).sum(2)


# No shape annotations from here on: torch's compiler cannot trace their checks.


def positions(places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(index into a tile, clamped to its width; whether the place is inside the tile)."""
    return places.clamp(0, width - 1), (places >= 0) & (places < width)


def _update_(
    logits: Tensor,
    largest: Tensor,
    total: Tensor,
    dot: Tensor,
    picked: Tensor,
    places: Tensor,
    exp_logits: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """exp(z − m) and the state after one more tile; sums relative to a smaller maximum are rescaled to the new one."""
    index, inside = positions(places, logits.shape[1])
    picked = torch.where(inside, logits.gather(1, index), picked)
    new_largest = torch.maximum(largest, logits.amax(1))
    shift = largest - new_largest
    scale = shift.exp()
    shifted = logits.sub_(new_largest.unsqueeze(1)).clamp_(min=LOWEST_LOGIT)
    exp_logits = torch.exp(shifted, out=exp_logits)
    new_total = scale * total + exp_logits.sum(1)
    new_dot = scale * (dot + shift * total) + torch.linalg.vecdot(exp_logits, shifted)
    return exp_logits, new_largest, new_total, new_dot, picked


def _from_exp_logits_(exp_logits: Tensor, shift: Tensor, constant: Tensor, slope: Tensor | None) -> Tensor:
    """exp(u)·(constant − slope·u), in the memory of exp(u − shift)."""
    scale = shift.exp()
    if slope is None:
        return exp_logits.mul_(scale * constant)
    shifted = exp_logits.log().clamp_(min=LOWEST_LOGIT).add_(shift)
    return exp_logits.mul_(scale).mul_(shifted.mul_(-slope).add_(constant))


@tile_kernel
def _update(
    logits: Tensor, largest: Tensor, total: Tensor, dot: Tensor, picked: Tensor, places: Tensor, keeps: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`_update_` in new memory; compiled, the clone is never made.

    In place, a compiled kernel would copy the tile back, as it cannot read and write the same memory.
    """
    exp_logits, largest, total, dot, picked = _update_(logits.clone(), largest, total, dot, picked, places, None)
    return exp_logits if keeps else logits.new_empty(0), largest, total, dot, picked


@tile_kernel
def _from_exp_logits(
    exp_logits: Tensor, shift: Tensor, constant: Tensor, slope: Tensor | None, places: Tensor, at_ids: Tensor
) -> Tensor:
    """`_from_exp_logits_`, rounded, with the gradients at `places` written over it (outside of the tile: to padding).

    Added after rounding instead, those gradients would lose their 1 − p.
    """
    width = exp_logits.shape[1]
    gradient = _from_exp_logits_(exp_logits.clone(), shift, constant, slope).to(at_ids.dtype)
    _, inside = positions(places, width)
    padded = torch.nn.functional.pad(gradient, (0, PADDING_COLUMNS))
    return padded.scatter_(1, torch.where(inside, places, width), at_ids)[:, :width]

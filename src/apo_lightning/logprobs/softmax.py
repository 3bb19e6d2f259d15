"""The softmax of many tiles: its running state, and the gradient of what is read off it."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.logprobs.head import part_of, tile_kernel

LOWEST_LOGIT = -1e4
"""Stands in for −∞ below the largest logit: exp of it is 0 too, but 0 · (−∞) would be NaN."""
NOTHING_SEEN = -1e30
"""The largest logit of no logits; −∞ − (−∞) would be NaN."""
COLUMNS_BESIDE = 8
"""Beside a tile, for what is not in it: as many as let rows of bfloat16 begin at 16 bytes, where products want them."""


@dataclass
class Softmax:
    """What a pass over the vocabulary has seen of some tokens.

    With u_v = z_v − m:   m = max z,   s = Σ exp(u_v),   d = Σ u_v·exp(u_v)

        log p_v = u_v − log s,   H = log s − d/s,   max p = 1/s
    """

    ids: Int[Tensor, "tokens picks"]
    """Whose log-probs are wanted; −1: none."""
    dtype: torch.dtype
    picked: Float[Tensor, "tokens picks"] = field(init=False)
    """Their logits; −∞ until seen."""

    def __post_init__(self) -> None:
        num_tokens = len(self.ids)
        self.largest = torch.full((num_tokens,), NOTHING_SEEN, dtype=self.dtype, device=self.ids.device)
        self.total, self.dot = torch.zeros_like(self.largest), torch.zeros_like(self.largest)
        self.picked = torch.full(self.ids.shape, -torch.inf, dtype=self.dtype, device=self.ids.device)

    def update(
        self, columns: slice, logits: Tensor, room: Tensor | None, *, keeps: bool = True
    ) -> tuple[Tensor, Tensor]:
        """See one tile.

        Args:
            columns: its part of the vocabulary.
            logits: overwritten where there is room.
            room: at least as large; receives the weights. None: they go to memory of their own, if they are kept.
            keeps: whether anyone wants the weights; else they may be none.

        Returns:
            The weights exp(z − m), and the m of now [tokens], which later tiles may yet raise.
        """
        state = self.largest, self.total, self.dot, self.picked
        places = self.ids - columns.start
        if room is None:
            weights, *state = _update(logits, *state, places, keeps)
        else:
            weights, *state = _update_(logits, *state, places, part_of(room, logits.shape))
        self.largest, self.total, self.dot, self.picked = state
        return weights, self.largest

    def exp_logits_(self, logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(exp(z − m), m) of a tile of these tokens, in place of its logits, once the whole vocabulary is seen."""
        largest = self.largest[tokens]
        return logits.sub_(largest.unsqueeze(1)).exp_(), largest

    def normalise(self, logits: Tensor) -> Tensor:
        """Log-probs [tokens, any] of logits of the same tokens, once the whole vocabulary has been seen."""
        return logits - self.largest.unsqueeze(1) - self.total.log().unsqueeze(1)

    def log_total(self) -> Tensor:
        """log Σ_v exp(z_v) [tokens], once the whole vocabulary has been seen."""
        return self.largest + self.total.log()

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """(log-probs at the ids, entropy, max-prob), once the whole vocabulary has been seen.

        H = log Σ_v exp(u_v) − Σ_v u_v·exp(u_v) / Σ_v exp(u_v),   u_v = z_v − max z,   max-prob = 1 / Σ_v exp(u_v)
        """
        log_sum = self.total.log()
        logprobs = self.normalise(self.picked)
        entropy = (log_sum - self.dot / self.total).clamp_(min=0.0)
        return logprobs.masked_fill_(self.ids < 0, -torch.inf), entropy, 1 / self.total


@dataclass(frozen=True)
class LogitGradient:
    """∂L/∂z of some tokens from what arrived at their log-probs and entropies.

        ∂L/∂z_v = p_v·(α − g_H·log p_v) + Σ_k g_k·[v = id_k],   α = −Σ_k g_k − g_H·H

    Written with exp(u_v) = s·p_v:   exp(u_v)·(constant − slope·u_v) + the sparse part.
    """

    ids: Int[Tensor, "tokens picks"]
    grad_ids: Float[Tensor, "tokens picks"]
    picked: Float[Tensor, "tokens picks"]
    largest: Float[Tensor, "tokens 1"]
    constant: Float[Tensor, "tokens 1"]
    slope: Float[Tensor, "tokens 1"] | None
    """The share of the entropy's gradient; None: nobody read the entropy."""

    @classmethod
    def of(
        cls, softmax: Softmax, tokens: Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> "LogitGradient":
        """From the state of a finished pass and the gradients of some of its tokens."""
        ids, total, picked = softmax.ids[tokens], softmax.total[tokens], softmax.picked[tokens]
        grad_ids = torch.zeros_like(picked) if grad_logprobs is None else grad_logprobs
        # What arrives at an absent id may be anything, NaN included.
        grad_ids = torch.where(ids < 0, 0.0, grad_ids)
        constant, slope = -grad_ids.sum(1) / total, None
        if grad_entropy is not None:
            slope = grad_entropy / total
            # H − log s = −d/s
            constant = constant + slope * softmax.dot[tokens] / total
            slope = slope.unsqueeze(1)
        return cls(ids, grad_ids, picked, softmax.largest[tokens].unsqueeze(1), constant.unsqueeze(1), slope)

    def from_exp_logits_(self, columns: slice, weights: Tensor, largest: Tensor) -> Tensor:
        """∂L/∂z of one tile from exp(z − m) and the m of `Softmax.update`, in place of the former."""
        gradient = _from_exp_logits_(weights, largest.unsqueeze(1) - self.largest, self.constant, self.slope)
        index, inside = positions(self.ids - columns.start, columns.stop - columns.start)
        return gradient.scatter_add_(1, index, self.grad_ids * inside)

    def from_exp_logits(self, columns: slice, weights: Tensor, largest: Tensor, dtype: torch.dtype) -> Tensor:
        """The same in memory of its own, rounded to a dtype at the end."""
        shift = largest.unsqueeze(1) - self.largest
        at_ids = self.at_ids.to(dtype)
        return _from_exp_logits(weights, shift, self.constant, self.slope, self.ids - columns.start, at_ids)

    @cached_property
    def at_ids(self) -> Float[Tensor, "tokens picks"]:
        """∂L/∂z at the ids themselves."""
        shifted = (self.picked - self.largest).clamp(min=LOWEST_LOGIT)
        linear = self.constant if self.slope is None else self.constant - self.slope * shifted
        is_same = self.ids.unsqueeze(2) == self.ids.unsqueeze(1)
        return shifted.exp() * linear + (is_same * self.grad_ids.unsqueeze(1)).sum(2)


# Without shapes from here on: torch's compiler cannot trace the checks of them.


def positions(places: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """(index of these places in a tile, whether they are inside it)."""
    return places.clamp(0, width - 1), (places >= 0) & (places < width)


def _update_(
    logits: Tensor,
    largest: Tensor,
    total: Tensor,
    dot: Tensor,
    picked: Tensor,
    places: Tensor,
    weights: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Weights and state after one more tile; what was summed against a smaller maximum is scaled to the new one."""
    index, inside = positions(places, logits.shape[1])
    picked = torch.where(inside, logits.gather(1, index), picked)
    new_largest = torch.maximum(largest, logits.amax(1))
    shift = largest - new_largest
    scale = shift.exp()
    shifted = logits.sub_(new_largest.unsqueeze(1)).clamp_(min=LOWEST_LOGIT)
    weights = torch.exp(shifted, out=weights)
    new_total = scale * total + weights.sum(1)
    new_dot = scale * (dot + shift * total) + torch.linalg.vecdot(weights, shifted)
    return weights, new_largest, new_total, new_dot, picked


def _from_exp_logits_(weights: Tensor, shift: Tensor, constant: Tensor, slope: Tensor | None) -> Tensor:
    """exp(u)·(constant − slope·u), in place of exp(u − shift)."""
    scale = shift.exp()
    if slope is None:
        return weights.mul_(scale * constant)
    shifted = weights.log().clamp_(min=LOWEST_LOGIT).add_(shift)
    return weights.mul_(scale).mul_(shifted.mul_(-slope).add_(constant))


@tile_kernel
def _update(
    logits: Tensor, largest: Tensor, total: Tensor, dot: Tensor, picked: Tensor, places: Tensor, keeps: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compiled, the copy is never made: the logits are read twice, and the weights written where they are kept.

    Written over, the logits would be copied back: compiled kernels know no memory that is both.
    """
    weights, largest, total, dot, picked = _update_(logits.clone(), largest, total, dot, picked, places, None)
    return weights if keeps else logits.new_empty(0), largest, total, dot, picked


@tile_kernel
def _from_exp_logits(
    weights: Tensor, shift: Tensor, constant: Tensor, slope: Tensor | None, places: Tensor, at_ids: Tensor
) -> Tensor:
    """Compiled, one kernel from the weights to the rounded gradient; added after rounding, ids would lose 1 − p.

    Ids outside of the tile are written beside it.
    """
    width = weights.shape[1]
    gradient = _from_exp_logits_(weights.clone(), shift, constant, slope).to(at_ids.dtype)
    _, inside = positions(places, width)
    with_beside = torch.nn.functional.pad(gradient, (0, COLUMNS_BESIDE))
    return with_beside.scatter_(1, torch.where(inside, places, width), at_ids)[:, :width]

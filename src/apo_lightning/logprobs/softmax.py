"""The softmax of many tiles: its running state, and the gradient of what is read off it."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.logprobs.head import part_of, tile_kernel

LOWEST_LOGIT = -1e4
"""Stands in for −∞ below the largest logit: exp of it is 0 too, but 0 · (−∞) would be NaN."""
NOTHING_SEEN = -1e30
"""The largest logit of no logits; −∞ − (−∞) would be NaN."""


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

    def absorb(self, rows: slice, columns: slice, logits: Tensor, weights: Tensor) -> Tensor:
        """See one tile.

        Args:
            rows: its tokens.
            columns: its part of the vocabulary.
            logits: overwritten.
            weights: at least as large; receives exp(z − m) with the m of now, which later tiles may yet raise.

        Returns:
            The m of now [rows].
        """
        index, inside = positions(self.ids[rows], columns)
        self.picked[rows] = torch.where(inside, logits.gather(1, index), self.picked[rows])
        state = _absorb_(logits, part_of(weights, logits.shape), self.largest[rows], self.total[rows], self.dot[rows])
        self.largest[rows], self.total[rows], self.dot[rows] = state
        return state[0]

    def weights_(self, logits: Tensor, rows: slice | Tensor) -> tuple[Tensor, Tensor]:
        """(exp(z − m), m) of a tile, in place of its logits, once the whole vocabulary has been seen."""
        largest = self.largest[rows]
        return logits.sub_(largest.unsqueeze(1)).exp_(), largest

    def normalise(self, logits: Tensor) -> Tensor:
        """Log-probs [tokens, any] of logits of the same tokens, once the whole vocabulary has been seen."""
        return logits - self.largest.unsqueeze(1) - self.total.log().unsqueeze(1)

    def finish(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """(log-probs at the ids, entropy, max-prob) of tokens whose whole vocabulary has been seen.

        H = log Σ_v exp(u_v) − Σ_v u_v·exp(u_v) / Σ_v exp(u_v),   u_v = z_v − max z,   max-prob = 1 / Σ_v exp(u_v)
        """
        log_sum = self.total[rows].log()
        logprobs = self.picked[rows] - self.largest[rows].unsqueeze(1) - log_sum.unsqueeze(1)
        entropy = (log_sum - self.dot[rows] / self.total[rows]).clamp_(min=0.0)
        return logprobs.masked_fill_(self.ids[rows] < 0, -torch.inf), entropy, 1 / self.total[rows]


@dataclass(frozen=True)
class LogitGradient:
    """∂L/∂z of some tokens from what arrived at their log-probs and entropies.

        ∂L/∂z_v = p_v·(α − g_H·log p_v) + Σ_k g_k·[v = id_k],   α = −Σ_k g_k − g_H·H

    Written with exp(u_v) = s·p_v:   exp(u_v)·(constant − slope·u_v) + the sparse part.
    """

    ids: Int[Tensor, "tokens picks"]
    grad_ids: Float[Tensor, "tokens picks"]
    largest: Float[Tensor, "tokens 1"]
    constant: Float[Tensor, "tokens 1"]
    slope: Float[Tensor, "tokens 1"] | None
    """The share of the entropy's gradient; None: nobody read the entropy."""

    @classmethod
    def of(
        cls, softmax: Softmax, rows: slice | Tensor, grad_logprobs: Tensor | None, grad_entropy: Tensor | None
    ) -> "LogitGradient":
        """From the state of a finished pass and the gradients of some of its tokens."""
        ids, total = softmax.ids[rows], softmax.total[rows]
        grad_ids = torch.zeros_like(softmax.picked[rows]) if grad_logprobs is None else grad_logprobs
        # What arrives at an absent id may be anything, NaN included.
        grad_ids = torch.where(ids < 0, 0.0, grad_ids)
        constant, slope = -grad_ids.sum(1) / total, None
        if grad_entropy is not None:
            slope = grad_entropy / total
            # H − log s = −d/s
            constant = constant + slope * softmax.dot[rows] / total
            slope = slope.unsqueeze(1)
        return cls(ids, grad_ids, softmax.largest[rows].unsqueeze(1), constant.unsqueeze(1), slope)

    def from_weights_(self, columns: slice, weights: Tensor, largest: Tensor) -> Tensor:
        """∂L/∂z of one tile from exp(z − m) and the m of `Softmax.absorb`, in place of the former."""
        shift = largest.unsqueeze(1) - self.largest
        gradient = _from_weights_(weights, shift, self.constant, self.slope)
        index, inside = positions(self.ids, columns)
        return gradient.scatter_add_(1, index, self.grad_ids * inside)


def positions(ids: Int[Tensor, "rows picks"], columns: slice) -> tuple[Tensor, Tensor]:
    """(where the ids stand inside the tile, whether they do)."""
    relative = ids - columns.start
    width = columns.stop - columns.start
    return relative.clamp(0, width - 1), (relative >= 0) & (relative < width)


@tile_kernel
def _absorb_(
    logits: Tensor, weights: Tensor, largest: Tensor, total: Tensor, dot: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The state after one more tile; what was summed against a smaller maximum is scaled to the new one."""
    new_largest = torch.maximum(largest, logits.amax(1))
    shift = largest - new_largest
    scale = shift.exp()
    shifted = logits.sub_(new_largest.unsqueeze(1)).clamp_(min=LOWEST_LOGIT)
    weights = torch.exp(shifted, out=weights)
    new_total = scale * total + weights.sum(1)
    new_dot = scale * (dot + shift * total) + torch.linalg.vecdot(weights, shifted)
    return new_largest, new_total, new_dot


@tile_kernel
def _from_weights_(weights: Tensor, shift: Tensor, constant: Tensor, slope: Tensor | None) -> Tensor:
    """exp(u)·(constant − slope·u), in place of exp(u − shift)."""
    scale = shift.exp()
    if slope is None:
        return weights.mul_(scale * constant)
    shifted = weights.log().clamp_(min=LOWEST_LOGIT).add_(shift)
    return weights.mul_(scale).mul_(shifted.mul_(-slope).add_(constant))

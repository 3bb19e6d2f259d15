"""The exact divergence of the policy from the reference, tiled like the statistics."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.logprobs.head import Head, HeadGradient, check_temperature, compute_dtype_of, part_of, tile_kernel
from apo_lightning.logprobs.softmax import Softmax
from apo_lightning.logprobs.workspace import Workspace, returned_gradient, weight_gradient


def full_kl(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    ref_hidden: Float[Tensor, "tokens ref_hidden"],
    ref_head_weight: Float[Tensor, "vocab ref_hidden"],
    *,
    temperature: float | int = 1.0,
    workspace: Workspace | None = None,
) -> Float[Tensor, "tokens"]:
    """The exact KL divergence of the policy from the reference, over the whole vocabulary.

        KL(π‖π_ref) = Σ_v π(v)·(log π(v) − log π_ref(v)),   ∂KL/∂z_v = π(v)·(log π(v) − log π_ref(v) − KL)

    Args:
        hidden: the policy's last hidden states; carries the gradient.
        head_weight: the policy's head; carries the gradient.
        ref_hidden: the reference's last hidden states at the same positions; constant.
        ref_head_weight: the reference's head; constant.
        temperature: τ > 0, of both.
        workspace: of the `DetachedHead` that asks; ∂L/∂W then goes there.

    Returns:
        KL [nats], ≥ 0 up to rounding; ∞ where the policy gives weight to a token of reference probability 0.

    Raises:
        ConfigError: the temperature is not positive.

    Example:
        >>> hidden, head = torch.ones(1, 1), torch.tensor([[1.0], [2.0], [0.0]])
        >>> full_kl(hidden, head, hidden, head)
        tensor([0.])
    """
    check_temperature(temperature)
    dtype = compute_dtype_of(hidden, head_weight) if workspace is None else workspace.weight.dtype
    constant = ref_hidden.detach(), ref_head_weight.detach()
    return _FullKL.apply(hidden, head_weight, *constant, temperature, dtype, workspace)


class _FullKL(torch.autograd.Function):
    """KL(π‖π_ref) [T]; the gradient is the one of `full_kl`.

    With u_v = z_v − m, s = Σ exp(u_v) and the same of the reference:

        KL = Σ_v exp(u_v)·(z_v − z_ref,v)/s − (log Σ exp z − log Σ exp z_ref)
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        ref_hidden: Tensor,
        ref_head_weight: Tensor,
        temperature: float | int,
        compute_dtype: torch.dtype,
        workspace: Workspace | None,
    ) -> Tensor:
        weight = head_weight if workspace is None else workspace.weight
        tiles = _TwoHeads(hidden, weight, ref_hidden, ref_head_weight, temperature, compute_dtype)
        seen = {rows.start: _Seen.nothing(hidden[rows], tiles.head.state_dtype) for rows in tiles.head.row_tiles()}
        scratch, differences = tiles.head.scratch(), tiles.head.buffer()
        for rows, columns, _, logits, ref_logits in tiles:
            seen[rows.start].update(columns, logits, ref_logits, scratch, differences)
        log_total, ref_log_total, kl = (
            torch.cat(parts) for parts in zip(*(s.finish() for s in seen.values()), strict=True)
        )
        ctx.save_for_backward(hidden, head_weight, ref_hidden, ref_head_weight, log_total, ref_log_total, kl)
        ctx.temperature, ctx.compute_dtype, ctx.workspace = temperature, compute_dtype, workspace
        return kl

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_kl: Tensor
    ) -> tuple[Any, ...]:
        hidden, head_weight, ref_hidden, ref_head_weight, log_total, ref_log_total, kl = ctx.saved_tensors
        weight = head_weight if ctx.workspace is None else ctx.workspace.weight
        tiles = _TwoHeads(hidden, weight, ref_hidden, ref_head_weight, ctx.temperature, ctx.compute_dtype)
        grad_weight = weight_gradient(head_weight, tiles.head, ctx.workspace, wanted=ctx.needs_input_grad[1])
        gradient = HeadGradient(tiles.head, hidden=ctx.needs_input_grad[0], weight=grad_weight)
        of_tokens = log_total, ref_log_total, kl, grad_kl / ctx.temperature
        for rows, columns, weight_tile, logits, ref_logits in tiles:
            state = (x[rows].unsqueeze(1) for x in of_tokens)
            grad_logits = (
                _kl_gradient_(logits, ref_logits, *state)
                if tiles.head.overwrites_tiles
                else _kl_gradient(logits, ref_logits, *state, dtype=ctx.compute_dtype)
            )
            gradient.add(rows, columns, weight_tile, grad_logits)
        returned = returned_gradient(grad_weight, head_weight, ctx.workspace)
        return gradient.take_hidden(), returned, None, None, None, None, None


@dataclass
class _Seen:
    """What a pass over the vocabulary has seen of some tokens: two softmaxes, and Σ exp(u)·(z − z_ref)."""

    policy: Softmax
    reference: Softmax
    distance: Float[Tensor, "tokens"]

    @classmethod
    def nothing(cls, hidden: Tensor, dtype: torch.dtype) -> "_Seen":
        no_ids = hidden.new_empty(len(hidden), 0, dtype=torch.long)
        policy, reference = Softmax(no_ids, dtype), Softmax(no_ids, dtype)
        return cls(policy, reference, torch.zeros_like(policy.total))

    def update(
        self, columns: slice, logits: Tensor, ref_logits: Tensor, scratch: Tensor | None, differences: Tensor
    ) -> None:
        before = self.policy.largest
        difference = torch.sub(logits, ref_logits, out=part_of(differences, logits.shape))
        weights, after = self.policy.update(columns, logits, scratch)
        self.distance = _update_kl_sum(weights, difference, before, after, self.distance)
        self.reference.update(columns, ref_logits, scratch, keeps=False)

    def finish(self) -> tuple[Tensor, Tensor, Tensor]:
        """(log Σ exp z, the reference's, KL)."""
        log_total, ref_log_total = self.policy.log_total(), self.reference.log_total()
        return log_total, ref_log_total, self.distance / self.policy.total - (log_total - ref_log_total)


class _TwoHeads:
    """The logits of policy and reference, tile by tile, the vocabulary in the outer loop."""

    def __init__(
        self,
        hidden: Tensor,
        head_weight: Tensor,
        ref_hidden: Tensor,
        ref_head_weight: Tensor,
        temperature: float | int,
        compute_dtype: torch.dtype,
    ) -> None:
        self.head = Head(hidden, head_weight, temperature, compute_dtype)
        self._reference = Head(ref_hidden, ref_head_weight, temperature, compute_dtype)

    def __iter__(self) -> Iterator[tuple[slice, slice, Tensor, Tensor, Tensor]]:
        """(tokens, columns, the policy's head there, its logits, the reference's); the logits may be overwritten."""
        logits, ref_logits = self.head.buffer(), self._reference.buffer()
        pairs = zip(self.head.column_tiles(), self._reference.column_tiles(), strict=True)
        for (columns, weight_tile), (_, ref_weight_tile) in pairs:
            for rows in self.head.row_tiles():
                yield (
                    rows,
                    columns,
                    weight_tile,
                    self.head.logits(rows, weight_tile, logits),
                    self._reference.logits(rows, ref_weight_tile, ref_logits),
                )


@tile_kernel
def _update_kl_sum(weights: Tensor, difference: Tensor, before: Tensor, after: Tensor, distance: Tensor) -> Tensor:
    """Σ exp(u)·(z − z_ref) after one more tile; a token of probability 0 adds 0, whatever the reference says."""
    scale = (before - after).exp()
    terms = (weights * difference).masked_fill(weights == 0, 0.0)
    return (scale * distance).masked_fill(scale == 0, 0.0) + terms.sum(1)


def _kl_gradient_(
    logits: Tensor, ref_logits: Tensor, log_total: Tensor, ref_log_total: Tensor, kl: Tensor, grad_kl: Tensor
) -> Tensor:
    """g·π·(log π − log π_ref − KL), in place of the logits."""
    logprobs = logits.sub_(log_total)
    probs = logprobs.exp()
    log_ratio = logprobs.sub_(ref_logits.sub_(ref_log_total)).masked_fill_(probs == 0, 0.0)
    return log_ratio.sub_(kl).mul_(probs).mul_(grad_kl)


@tile_kernel
def _kl_gradient(logits: Tensor, ref_logits: Tensor, *state: Tensor, dtype: torch.dtype) -> Tensor:
    """The same in memory of its own, rounded to a dtype; compiled, the copies are never made."""
    return _kl_gradient_(logits.clone(), ref_logits.clone(), *state).to(dtype)

"""The exact divergence of the policy from the reference, tiled like the statistics."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.logprobs.head import Head, HeadGradient, check_temperature, compute_dtype_of


def full_kl(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    ref_hidden: Float[Tensor, "tokens ref_hidden"],
    ref_head_weight: Float[Tensor, "vocab ref_hidden"],
    *,
    temperature: float | int = 1.0,
) -> Float[Tensor, "tokens"]:
    """The exact KL divergence of the policy from the reference, over the whole vocabulary.

        KL(π‖π_ref) = Σ_v π(v)·(log π(v) − log π_ref(v)),   ∂KL/∂z_v = π(v)·(log π(v) − log π_ref(v) − KL)

    Args:
        hidden: the policy's last hidden states; carries the gradient.
        head_weight: the policy's head; carries the gradient.
        ref_hidden: the reference's last hidden states at the same positions; constant.
        ref_head_weight: the reference's head; constant.
        temperature: τ > 0, of both.

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
    dtype = compute_dtype_of(hidden, head_weight)
    return _FullKL.apply(hidden, head_weight, ref_hidden.detach(), ref_head_weight.detach(), temperature, dtype)


class _FullKL(torch.autograd.Function):
    """KL(π‖π_ref) [T]; the gradient is the one of `full_kl`."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        head_weight: Tensor,
        ref_hidden: Tensor,
        ref_head_weight: Tensor,
        temperature: float | int,
        compute_dtype: torch.dtype,
    ) -> Tensor:
        head = Head(hidden, head_weight, temperature, compute_dtype)
        reference = Head(ref_hidden, ref_head_weight, temperature, compute_dtype)
        kl = hidden.new_empty(len(hidden), dtype=head.state_dtype)
        for rows, logits in head.chunks():
            probs, log_ratio = _compare_(logits, reference.logits(rows))
            kl[rows] = probs.mul_(log_ratio).sum(1)
        ctx.save_for_backward(hidden, head_weight, ref_hidden, ref_head_weight, kl)
        ctx.temperature, ctx.compute_dtype = temperature, compute_dtype
        return kl

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_kl: Tensor
    ) -> tuple[Any, ...]:
        hidden, head_weight, ref_hidden, ref_head_weight, kl = ctx.saved_tensors
        head = Head(hidden, head_weight, ctx.temperature, ctx.compute_dtype)
        reference = Head(ref_hidden, ref_head_weight, ctx.temperature, ctx.compute_dtype)
        gradient = HeadGradient(head, ctx.needs_input_grad)
        for rows, logits in head.chunks():
            probs, log_ratio = _compare_(logits, reference.logits(rows))
            grad_logits = log_ratio.sub_(kl[rows].unsqueeze(1)).mul_(probs).mul_(grad_kl[rows].unsqueeze(1))
            gradient.add(rows, grad_logits)
        return gradient.hidden, gradient.weight, None, None, None, None


def _compare_(logits: Tensor, ref_logits: Tensor) -> tuple[Tensor, Tensor]:
    """(π, log π − log π_ref), the latter 0 where π is 0; overwrites both arguments."""
    logprobs = logits.sub_(logits.logsumexp(1, keepdim=True))
    probs = logprobs.exp()
    log_ratio = logprobs.sub_(ref_logits.sub_(ref_logits.logsumexp(1, keepdim=True)))
    return probs, log_ratio.masked_fill_(probs == 0, 0.0)

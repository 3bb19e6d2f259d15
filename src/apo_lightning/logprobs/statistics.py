"""Log-probs, entropy, largest probability and top-K of the head, in one pass over its logits."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from apo_lightning.errors import ConfigError
from apo_lightning.logprobs.head import Head, HeadGradient, check_temperature, compute_dtype_of
from apo_lightning.types import ReferenceStatistics, TokenStatistics

LOWEST_LOGIT = -1e4
"""Stands in for −∞ below the largest logit: exp of it is 0 too, but 0 · (−∞) would be NaN."""


def token_statistics(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, "tokens"],
    anchor_ids: Int[Tensor, "tokens anchors"] | None = None,
    *,
    temperature: float | int = 1.0,
) -> TokenStatistics:
    """What the policy says at each token: log-prob, entropy, largest probability, log-probs at the anchors.

    All but `max_prob` carry a gradient to `hidden` and `head_weight`:

        ∂L/∂z_v = p_v·(α − g_H·log p_v) + g_y·[v = y] + Σ_k g_k·[v = a_k],   α = −g_y − Σ_k g_k − g_H·H

    Under autocast, matrix products run in its dtype, as they would have in a linear layer.

    Args:
        hidden: last hidden states at the positions that predict the tokens.
        head_weight: one row a token of the vocabulary.
        token_ids: the tokens y whose log-probs are wanted.
        anchor_ids: further tokens of each position; −1 gives log-prob −∞ and no gradient.
        temperature: τ > 0; the distribution is softmax(h·Wᵀ/τ).

    Raises:
        ConfigError: the temperature is not positive.

    Example:
        Two tokens with logits 0 and log 3 have probabilities 1/4 and 3/4.

        >>> head = torch.tensor([[1.0], [3.0]]).log()
        >>> statistics = token_statistics(torch.ones(1, 1), head, torch.tensor([0]))
        >>> statistics.logprobs.exp(), statistics.max_prob
        (tensor([0.2500]), tensor([0.7500]))
    """
    check_temperature(temperature)
    ids = token_ids.unsqueeze(1).long()
    if anchor_ids is not None:
        ids = torch.cat([ids, anchor_ids], dim=1)
    logprobs, entropy, max_prob = _TokenStatistics.apply(
        hidden, head_weight, ids, temperature, compute_dtype_of(hidden, head_weight)
    )
    return TokenStatistics(
        logprobs=logprobs[:, 0],
        entropy=entropy,
        max_prob=max_prob,
        anchor_logprobs=None if anchor_ids is None else logprobs[:, 1:],
    )


@torch.no_grad()
def reference_statistics(
    hidden: Float[Tensor, "tokens hidden"],
    head_weight: Float[Tensor, "vocab hidden"],
    token_ids: Int[Tensor, "tokens"],
    anchor_size: int,
    *,
    temperature: float | int = 1.0,
) -> ReferenceStatistics:
    """What a frozen model says at each token: its log-prob, and the K most likely tokens, T_K.

    Anchors come in descending order, ties to the lower id. Where fewer than K tokens have a probability above 0, the
    remaining slots hold id −1 and log-prob −∞.

    Args:
        hidden: the reference's last hidden states at the positions that predict the tokens.
        head_weight: the reference's head.
        token_ids: the tokens y whose log-probs are wanted.
        anchor_size: K; 0: no anchors.
        temperature: τ > 0, the rollout's.

    Raises:
        ConfigError: the temperature is not positive, or `anchor_size` exceeds the vocabulary.

    Example:
        >>> head = torch.tensor([[1.0], [2.0], [2.0], [0.0]])
        >>> reference_statistics(torch.ones(1, 1), head, torch.tensor([0]), anchor_size=3).anchor_ids
        tensor([[1, 2, 0]])
    """
    check_temperature(temperature)
    if not 0 <= anchor_size <= len(head_weight):
        raise ConfigError(f"anchor_size is {anchor_size}: the vocabulary has {len(head_weight)} tokens to choose from")
    head = Head(hidden, head_weight, temperature, compute_dtype_of(hidden, head_weight))
    ids = token_ids.unsqueeze(1).long().repeat(1, 1 + anchor_size)
    logprobs = hidden.new_empty(ids.shape, dtype=head.state_dtype)
    for rows, logits in head.chunks():
        ids[rows, 1:] = top_ids(logits, anchor_size)
        picked = logits.gather(1, ids[rows])
        logprobs[rows] = picked.sub_(logits.amax(1, keepdim=True)).sub_(_log_sum_(logits).unsqueeze(1))
    anchor_ids, anchor_logprobs = ids[:, 1:], logprobs[:, 1:]
    return ReferenceStatistics(
        logprobs=logprobs[:, 0],
        anchor_ids=anchor_ids.masked_fill(anchor_logprobs == -torch.inf, -1) if anchor_size else None,
        anchor_logprobs=anchor_logprobs if anchor_size else None,
    )


def top_ids(scores: Float[Tensor, "tokens vocab"], k: int) -> Int[Tensor, "tokens {k}"]:
    """The ids of the k largest scores of each row, in descending order, ties to the lower id.

    `torch.topk` alone takes any of the tied ids, and another of them on another device; in bfloat16 ties are common.

    Example:
        >>> top_ids(torch.tensor([[5.0, 7.0, 5.0, 5.0]]), k=3)
        tensor([[1, 0, 2]])
    """
    num_candidates = min(k + 1, scores.shape[1])
    values, ids = scores.topk(num_candidates, dim=1)
    ids = ids[:, :k]
    if 0 < k < num_candidates:
        tied = (values[:, k - 1] == values[:, k]).nonzero().flatten()
        if len(tied):
            ids[tied] = _lowest_ids_at_boundary(scores[tied], values[tied, k - 1 : k], k)
    ids = ids.sort(dim=1).values
    order = scores.gather(1, ids).sort(dim=1, descending=True, stable=True).indices
    return ids.gather(1, order)


def _lowest_ids_at_boundary(scores: Tensor, kth_largest: Tensor, k: int) -> Tensor:
    """All ids above the k-th largest score and, of those equal to it, the lowest that still fit."""
    above = scores > kth_largest
    equal = scores == kth_largest
    num_places = k - above.sum(1, keepdim=True, dtype=torch.int32)
    chosen = above | (equal & (equal.cumsum(1, dtype=torch.int32) <= num_places))
    return chosen.nonzero()[:, 1].view(len(scores), k)


class _TokenStatistics(torch.autograd.Function):
    """(log-probs at `ids` [T, 1 + K], entropy [T], max_prob [T]); the gradient is the one of `token_statistics`."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head_weight: Tensor, ids: Tensor, temperature: float | int, compute_dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        head = Head(hidden, head_weight, temperature, compute_dtype)
        largest, log_sum, entropy = hidden.new_empty(3, len(hidden), dtype=head.state_dtype).unbind()
        logprobs = largest.new_empty(ids.shape)
        for rows, logits in head.chunks():
            logprobs[rows] = logits.gather(1, ids[rows].clamp(min=0))
            largest[rows] = logits.amax(1)
            log_sum[rows], entropy[rows] = _log_sum_and_entropy_(logits)
        logprobs.sub_(largest.unsqueeze(1)).sub_(log_sum.unsqueeze(1)).masked_fill_(ids < 0, -torch.inf)
        entropy, max_prob = entropy.clone(), torch.exp(-log_sum)
        ctx.save_for_backward(hidden, head_weight, ids, largest, log_sum, entropy)
        ctx.temperature, ctx.compute_dtype = temperature, compute_dtype
        ctx.mark_non_differentiable(max_prob)
        ctx.set_materialize_grads(False)  # an entropy nobody reads costs its backward nothing
        return logprobs, entropy, max_prob

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, grad_logprobs: Tensor | None, grad_entropy: Tensor | None, _: None
    ) -> tuple[Any, ...]:
        hidden, head_weight, ids, largest, log_sum, entropy = ctx.saved_tensors
        if grad_logprobs is None:
            grad_logprobs = torch.zeros_like(largest).unsqueeze(1).expand(ids.shape)
        # What arrives at an absent id may be anything, NaN included.
        grad_ids = torch.where(ids < 0, 0.0, grad_logprobs)
        # With w = exp(u), p = w/s: ∂L/∂z = w·(constant − slope·u) + the sparse part.
        inverse_sum = torch.exp(-log_sum)
        constant, slope = -grad_ids.sum(1) * inverse_sum, None
        if grad_entropy is not None:
            slope = grad_entropy * inverse_sum
            constant = constant - slope * (entropy - log_sum)

        head = Head(hidden, head_weight, ctx.temperature, ctx.compute_dtype)
        gradient = HeadGradient(head, ctx.needs_input_grad)
        for rows, logits in head.chunks():
            shifted = logits.sub_(largest[rows].unsqueeze(1))
            if slope is None:
                grad_logits = shifted.exp_().mul_(constant[rows].unsqueeze(1))
            else:
                weight = shifted.exp()
                grad_logits = shifted.clamp_(min=LOWEST_LOGIT).mul_(-slope[rows].unsqueeze(1))
                grad_logits.add_(constant[rows].unsqueeze(1)).mul_(weight)
            gradient.add(rows, grad_logits.scatter_add_(1, ids[rows].clamp(min=0), grad_ids[rows]))
        return gradient.hidden, gradient.weight, None, None, None


def _log_sum_(logits: Tensor) -> Tensor:
    """Log s; overwrites the logits."""
    return logits.sub_(logits.amax(1, keepdim=True)).exp_().sum(1).log_()


def _log_sum_and_entropy_(logits: Tensor) -> tuple[Tensor, Tensor]:
    """(log s, H = log s − Σ_v p_v u_v); overwrites the logits."""
    shifted = logits.sub_(logits.amax(1, keepdim=True))
    weight = shifted.exp()
    total = weight.sum(1)
    log_sum = total.log()
    mean_shift = weight.mul_(shifted.clamp_(min=LOWEST_LOGIT)).sum(1) / total
    return log_sum, (log_sum - mean_shift).clamp_(min=0.0)

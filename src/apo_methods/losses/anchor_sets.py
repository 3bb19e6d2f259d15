"""Parts of the reference's top K, and the divergence of two policies over such a part."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.losses.functional import Number, log_mass
from apo_lightning.types import Anchor

LEAST_OUTSIDE = 1e-6
"""Of the mass outside T, in nats of −log of the mass inside: log(1 − J) stays finite in float32."""


def prefix(anchor: Anchor, top_p: Number) -> Anchor:
    """The fewest of the reference's likeliest tokens that hold a probability of `top_p`; all of T_K if none do.

    Example:
        >>> ref = torch.tensor([[0.5, 0.25]]).log()
        >>> prefix(Anchor(token_ids=torch.tensor([[7, 3]]), ref_logprobs=ref, logprobs=ref), 0.5).token_ids
        tensor([[ 7, -1]])
    """
    if top_p == 1:  # a sum in float32 may reach 1 before the last token
        return anchor
    probs = anchor.ref_logprobs.exp()
    return replace(anchor, token_ids=anchor.token_ids.masked_fill(probs.cumsum(1) - probs >= top_p, -1))


def drawn(pool: Anchor, token_ids: Int[Tensor, "tokens"], size: int) -> Anchor:
    """`size` tokens of the pool, chosen by a hash; the sampled one is left out.

    The hash is of the token, the sampled token and the reference's ranking there: the same for every mini-batch of a
    rollout, others from prefix to prefix.
    """
    ranks = torch.arange(1, pool.token_ids.shape[1] + 1, device=pool.token_ids.device)
    place = (pool.token_ids.clamp(min=0) * ranks).sum(1, keepdim=True)
    keys = scrambled(scrambled(scrambled(place) ^ token_ids.unsqueeze(1)) ^ pool.token_ids)
    # The sampled token and empty slots come last, so that `size` others are taken where there are as many.
    last = (pool.token_ids < 0) | (pool.token_ids == token_ids.unsqueeze(1))
    order = keys.masked_fill(last, torch.iinfo(torch.int64).max).argsort(dim=1, stable=True)
    taken = torch.zeros_like(last).scatter(1, order[:, :size], torch.ones_like(last)) & ~last
    return replace(pool, token_ids=pool.token_ids.masked_fill(~taken, -1))


def scrambled(keys: Int[Tensor, "..."]) -> Int[Tensor, "..."]:
    """A hash of 31-bit numbers.

        x ← ((x ⊕ x>>16)·73244475) mod 2³¹, twice;   x ⊕ x>>16

    Example:
        >>> scrambled(torch.tensor([0, 1, 2]))
        tensor([         0,  824515495, 1722258072])
    """
    keys = keys & 0x7FFFFFFF
    for _ in range(2):
        keys = ((keys ^ (keys >> 16)) * 73244475) & 0x7FFFFFFF
    return keys ^ (keys >> 16)


def partition_kl(
    logprobs: Float[Tensor, "tokens anchors"],
    other_logprobs: Float[Tensor, "tokens anchors"],
    members: Bool[Tensor, "tokens anchors"],
    *,
    bucket: bool = True,
) -> Float[Tensor, "tokens"]:
    """KL(p‖q) on the partition into the members of T and one bucket for all other tokens.

        D = Σ_T p·log(p/q) + (1 − J_p)·log((1 − J_p)/(1 − J_q)),   J_p = Σ_T p,   J_q = Σ_T q

    D ≥ 0, is 0 exactly where p and q agree on the partition, is at most the KL over the vocabulary, and rises with T.
    Without the bucket's term it may be negative, and its minimum is not at p = q.

    Args:
        logprobs: log p at the ids of T.
        other_logprobs: log q at the same ids.
        members: True for the members of T.
        bucket: False leaves the bucket's term out.

    Returns:
        D [nats]; 0 where there is no member.

    Example:
        p = (1/2, 1/4, 1/4), q = (1/4, 1/4, 1/2), T the first: ½·log 2 + ½·log(½/¾) = 0.1438.

        >>> half, quarter = torch.tensor([[0.5]]).log(), torch.tensor([[0.25]]).log()
        >>> partition_kl(half, quarter, torch.tensor([[True]]))
        tensor([0.1438])
    """
    present = members & (logprobs > -torch.inf) & (other_logprobs > -torch.inf)
    # Masked before the product: 0·∞ is NaN.
    p, q = torch.where(present, logprobs, 0.0), torch.where(present, other_logprobs, 0.0)
    inside = (torch.where(present, p.exp(), 0.0) * (p - q)).sum(1)
    if not bucket:
        return inside
    tail, other_tail = (_log_outside(log_mass(values, members)) for values in (logprobs, other_logprobs))
    return inside + tail.exp() * (tail - other_tail)


def _log_outside(log_inside: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """log(1 − J) from log J; 1 − exp would lose all digits of a small tail."""
    return (-torch.expm1(log_inside.clamp(max=-LEAST_OUTSIDE))).log()

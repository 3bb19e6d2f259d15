"""Forces of one token from the paper's equations, to compare with those of the losses that train.

Rows are tokens; `probs` is π, `token_ids` y, `advantages` A. Forces point uphill on the objective [nats per unit of η].
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Rows = Float[Tensor, "tokens vocab"]


def towards_token(probs: Rows, token_ids: Int[Tensor, "tokens"]) -> Rows:
    """e_y − π, the gradient of log π(y)."""
    return torch.nn.functional.one_hot(token_ids, probs.shape[1]).to(probs) - probs


def reward(probs: Rows, token_ids: Int[Tensor, "tokens"], advantages: Tensor, ratio: Tensor) -> Rows:
    """A·r·(e_y − π)."""
    return (advantages * ratio)[:, None] * towards_token(probs, token_ids)


def within(probs: Rows, members: Bool[Tensor, "tokens vocab"]) -> Rows:
    """q_S = π(·|S); 0 outside S, and everywhere if S is empty."""
    inside = probs * members
    return inside / inside.sum(1, keepdim=True).clamp(min=1e-300)


def anchors(
    ref: Rows, token_ids: Int[Tensor, "tokens"], size: int, *, naive: bool = False
) -> Bool[Tensor, "tokens vocab"]:
    """S: the reference's `size` likeliest tokens without y; with y if `naive`."""
    likeliest = ref.argsort(dim=1, descending=True, stable=True)[:, :size]
    members = torch.zeros_like(ref, dtype=torch.bool).scatter(1, likeliest, True)
    return members if naive else members.scatter(1, token_ids[:, None], False)


def anchor_ratio(probs: Rows, ref: Rows, members: Bool[Tensor, "tokens vocab"]) -> Float[Tensor, "tokens"]:
    """r_a = Σ_S π / Σ_S π_ref; 0 if S is empty."""
    return (probs * members).sum(1) / (ref * members).sum(1).clamp(min=1e-300)


def pull(probs: Rows, ref: Rows, members: Bool[Tensor, "tokens vocab"], size: Tensor, pull_coef: float) -> Rows:
    """|A|·β·r_a·(q_S − π); 0 if S is empty."""
    scale = size.abs() * pull_coef * anchor_ratio(probs, ref, members)
    return scale[:, None] * (within(probs, members) - probs)


def coverage_gradient(
    probs: Float[Tensor, "*tokens vocab"], members: Bool[Tensor, "*tokens vocab"]
) -> Float[Tensor, "*tokens vocab"]:
    """∇Π_S = π ⊙ (1_S − Π_S)."""
    return probs * (members.double() - (probs * members).sum(-1, keepdim=True))


def reverse_kl(probs: Rows, ref: Rows) -> Rows:
    """−π ⊙ (log(π/π_ref) − KL), the force of KL(π‖π_ref)."""
    difference = probs.log() - ref.log()
    return -probs * (difference - (probs * difference).sum(1, keepdim=True))


def entropy_bonus(probs: Rows) -> Rows:
    """−π ⊙ (log π + H)."""
    entropy = -(probs * probs.log()).sum(1, keepdim=True)
    return -probs * (probs.log() + entropy)

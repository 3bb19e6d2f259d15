"""The force of a token on the logits of its position: the negative gradient of a loss that trains, by autograd."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.losses import APO, PolicyLoss
from apo_lightning.losses.trial import loss_inputs


def token_forces(
    loss: PolicyLoss,
    logits: Float[Tensor, "*tokens vocab"],
    ref: Float[Tensor, "*#tokens vocab"],
    token_ids: Int[Tensor, "*#tokens"] | int,
    advantages: Float[Tensor, "*#tokens"] | float = -1.0,
    is_correct: Bool[Tensor, "*#tokens"] | None = None,
    old_logits: Float[Tensor, "*#tokens vocab"] | None = None,
) -> Float[Tensor, "*tokens vocab"]:
    """f = −∂loss/∂z of each token, a completion of its own [nats per unit of η].

    Arguments are broadcast to the logits' tokens, of which there may be one; without `is_correct` a token is wrong if
    A ≤ 0. Without `old_logits` the policy itself sampled, so that r = 1.

    Example:
        Of three equally likely tokens the right one rises by A·(1 − π), the others fall by A·π.

        >>> from apo_lightning.losses import GRPO
        >>> token_forces(GRPO(), torch.zeros(3), torch.full((3,), 1 / 3), 0, 3.0)
        tensor([ 2.0000, -1.0000, -1.0000])
    """
    shape, vocab = logits.shape[:-1], logits.shape[-1]
    z = logits.detach().reshape(-1, vocab).clone().requires_grad_()
    ids = torch.as_tensor(token_ids).expand(shape).flatten()
    values = torch.as_tensor(advantages, dtype=logits.dtype).expand(shape).flatten()
    correct = values > 0 if is_correct is None else is_correct.expand(shape).flatten()
    old = (logits if old_logits is None else old_logits.expand_as(logits)).detach().reshape(-1, vocab).log_softmax(1)
    old_logprobs, log_ref = old.gather(1, ids[:, None])[:, 0], ref.log().expand_as(logits).reshape(-1, vocab)
    output = loss(loss_inputs(loss, z, log_ref, ids, torch.arange(len(ids)), values, correct, old_logprobs))
    (gradient,) = torch.autograd.grad(output.per_token.sum(), z)
    return -gradient.view_as(logits)


def pull_forces(
    loss: APO,
    logits: Float[Tensor, "*tokens vocab"],
    ref: Float[Tensor, "*#tokens vocab"],
    token_ids: Int[Tensor, "*#tokens"] | int,
    advantages: Float[Tensor, "*#tokens"] | float = -1.0,
) -> Float[Tensor, "*tokens vocab"]:
    """The force of the pull alone: `token_forces` minus those with β = 0; the gate must be open in both."""
    push = token_forces(replace(loss, pull_coef=0.0), logits, ref, token_ids, advantages)
    return token_forces(loss, logits, ref, token_ids, advantages) - push


def log_growth(
    probs: Float[Tensor, "*batch vocab"], force: Float[Tensor, "*batch vocab"]
) -> Float[Tensor, "*batch vocab"]:
    """ℓ = d log π/dt = f − ⟨π, f⟩ under a force on the logits [nats per unit of η]."""
    return force - (probs * force).sum(-1, keepdim=True)

"""The force of a token on the logits of its position: the negative gradient of a loss that trains, by autograd."""

from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, PolicyLoss
from apo_lightning.types import Anchor, LossInputs, detached


def loss_inputs(
    loss: PolicyLoss,
    logits: Float[Tensor, "tokens vocab"],
    ref: Float[Tensor, "tokens vocab"],
    token_ids: Int[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    is_correct: Bool[Tensor, "tokens"],
    old_logits: Float[Tensor, "tokens vocab"] | None = None,
) -> LossInputs:
    """The inputs that the trainer would give the loss for tokens whose whole distribution is known.

    The gradient flows to `logits`. Without `old_logits` the policy itself sampled, so that r = 1. Each token is a
    completion of its own.

    Raises:
        ConfigError: the loss needs more anchors than the vocabulary has tokens.
    """
    needs = loss.needs
    if needs.anchor_size > ref.shape[1]:
        raise ConfigError(f"anchor_size is {needs.anchor_size} over {ref.shape[1]} tokens: give at most the vocabulary")
    log_policy, log_ref = logits.log_softmax(1), ref.log()
    old = (logits if old_logits is None else old_logits).detach().log_softmax(1)
    sampled = token_ids[:, None]
    anchor = None
    if needs.anchor_size:
        ids = ref.argsort(dim=1, descending=True, stable=True)[:, : needs.anchor_size]
        anchor = Anchor(token_ids=ids, ref_logprobs=log_ref.gather(1, ids), logprobs=log_policy.gather(1, ids))
    inputs = LossInputs(
        token_ids=token_ids,
        sequence_ids=torch.arange(len(token_ids)),
        logprobs=log_policy.gather(1, sampled)[:, 0],
        old_logprobs=old.gather(1, sampled)[:, 0],
        advantages=advantages,
        is_correct=is_correct,
        ref_logprobs=log_ref.gather(1, sampled)[:, 0] if needs.ref_logprobs else None,
        anchor=anchor,
        entropy=-(log_policy.exp() * log_policy).sum(1) if needs.entropy else None,
        full_kl=(log_policy.exp() * (log_policy - log_ref)).sum(1) if needs.full_kl else None,
        columns=dict.fromkeys(needs.columns, torch.zeros_like(advantages)),
    )
    own = loss.completion_columns(detached(inputs)) if needs.completions else {}
    return replace(inputs, columns={**inputs.columns, **own})


def token_forces(
    loss: PolicyLoss,
    logits: Float[Tensor, "*tokens vocab"],
    ref: Float[Tensor, "*#tokens vocab"],
    token_ids: Int[Tensor, "*#tokens"] | int,
    advantages: Float[Tensor, "*#tokens"] | float = -1.0,
    is_correct: Bool[Tensor, "*#tokens"] | None = None,
    old_logits: Float[Tensor, "*#tokens vocab"] | None = None,
) -> Float[Tensor, "*tokens vocab"]:
    """f = −∂loss/∂z of each token alone [nats per unit of η].

    Arguments are broadcast to the logits' tokens, of which there may be one; without `is_correct` a token is wrong if
    A ≤ 0.

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
    old = None if old_logits is None else old_logits.expand_as(logits).reshape(-1, vocab)
    output = loss(loss_inputs(loss, z, ref.expand_as(logits).reshape(-1, vocab), ids, values, correct, old))
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

"""A loss is tried on eight made-up tokens before a run: in the run a wrong one would fail late, or never be called."""

import traceback
from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.losses.policy_loss import PolicyLoss
from apo_lightning.types import Anchor, LossInputs, LossOutput, detached

NUM_TOKENS = 8
LOG_RATIOS = (0.01, 1.0, -1.0)
"""log π − log π_old of all tokens, in three trials: a term may have a gradient inside or outside of a bound alone."""


def try_loss(loss: PolicyLoss) -> None:
    """Call a loss as the update does, on completions of three tokens with A = 1, of three with −1, and of two with 0.

    Raises:
        ConfigError: it fails, returns anything but one differentiable value per token, or has a gradient on
            a token outside of its `needs.gradient_on`.
    """
    for log_ratio in LOG_RATIOS:
        _try(loss, log_ratio)


@torch.enable_grad()
def _try(loss: PolicyLoss, log_ratio: float) -> None:
    name, tokens = f"algo.loss is {type(loss).__name__}", f"{NUM_TOKENS} made-up tokens"
    inputs: LossInputs | None = None
    try:
        inputs, logits = _inputs(loss, log_ratio)
        output = loss(inputs)
        mask = loss.needs.gradient_mask(inputs.advantages, inputs.is_correct)
    except ConfigError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({frame.filename}:{frame.lineno})" if frame.filename != __file__ else ""
        failure = f"{type(error).__name__}: {in_brief(error)}{where}"
        if inputs is not None and "NoneType" in failure:
            absent = ", ".join(item.name for item in fields(LossInputs) if getattr(inputs, item.name) is None)
            raise ConfigError(f"{name}, which fails on {tokens}: {failure}; its needs do not name {absent}") from error
        raise ConfigError(
            f"{name}, which fails on {tokens}: {failure}; a loss takes LossInputs and returns LossOutput"
        ) from error
    if not isinstance(output, LossOutput):
        raise ConfigError(
            f"{name}, which returns a {type(output).__name__}: return LossOutput(per_token=…), with one value per "
            "token, before any mean"
        )
    for key, values in {"per_token": output.per_token, **output.metrics}.items():
        if values.shape != (NUM_TOKENS,):
            shape = list(values.shape)
            raise ConfigError(f"{name}, whose {key} has the shape {shape} for {tokens}: give one value per token")
    if not output.per_token.requires_grad:
        raise ConfigError(
            f"{name}, whose per_token has no gradient on {tokens}: compute it from inputs.logprobs without .detach()"
        )
    (gradient,) = torch.autograd.grad(output.per_token.sum(), logits, retain_graph=True)
    for what, values in (("per_token", output.per_token[:, None]), ("gradient", gradient)):
        wrong = ~values.isfinite().all(1)
        if wrong.any():
            found = ", ".join(f"{value:g}" for value in inputs.advantages[wrong].unique().tolist())
            raise ConfigError(
                f"{name}, whose {what} is not finite on {int(wrong.sum())} of {tokens}, of advantages {found}: mind "
                "what is 0 in a division, root or logarithm"
            )
    left_out = output.per_token[~mask].sum()
    if torch.autograd.grad(left_out, logits)[0].any():
        raise ConfigError(
            f"{name}, which has a gradient on tokens outside of its needs.gradient_on={loss.needs.gradient_on!r}, "
            "which are not run: widen it, up to gradient_on='all'"
        )


def _inputs(loss: PolicyLoss, log_ratio: float) -> tuple[LossInputs, Tensor]:
    """Inputs of the loss, and the logits; policy and reference differ."""
    vocab_size = max(32, 2 * loss.needs.anchor_size)
    logits = torch.arange(float(NUM_TOKENS * vocab_size)).sin().view(NUM_TOKENS, vocab_size).requires_grad_()
    reference, token_ids = (1.1 * logits.detach()).log_softmax(1), torch.arange(NUM_TOKENS)
    sequence_ids = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    advantages = torch.tensor([1.0, -1.0, 0.0])[sequence_ids]
    old = logits.detach().log_softmax(1).diagonal() - log_ratio
    return loss_inputs(loss, logits, reference, token_ids, sequence_ids, advantages, advantages > 0, old), logits


def loss_inputs(
    loss: PolicyLoss,
    logits: Float[Tensor, "tokens vocab"],
    reference: Float[Tensor, "tokens vocab"],
    token_ids: Int[Tensor, "tokens"],
    sequence_ids: Int[Tensor, "tokens"],
    advantages: Float[Tensor, "tokens"],
    is_correct: Bool[Tensor, "tokens"],
    old_logprobs: Float[Tensor, "tokens"],
) -> LossInputs:
    """What the update would hand to the loss, for tokens whose whole distributions are known.

    The gradient flows to `logits`; `reference` are log-probs. Columns of the mini-batch are 1.

    Raises:
        ConfigError: the loss needs more anchors than the vocabulary has tokens.
    """
    needs, policy = loss.needs, logits.log_softmax(1)
    if needs.anchor_size > logits.shape[1]:
        raise ConfigError(f"anchor_size is {needs.anchor_size} over {logits.shape[1]} tokens: give at most as many")
    at_token, ref_at_token = (logprobs.gather(1, token_ids[:, None])[:, 0] for logprobs in (policy, reference))
    anchor = None
    if needs.anchor_size:
        ids = reference.argsort(dim=1, descending=True, stable=True)[:, : needs.anchor_size]
        anchor = Anchor(token_ids=ids, ref_logprobs=reference.gather(1, ids), logprobs=policy.gather(1, ids))
    inputs = LossInputs(
        token_ids=token_ids,
        sequence_ids=sequence_ids,
        logprobs=at_token,
        old_logprobs=old_logprobs,
        rollout_logprobs=old_logprobs,
        advantages=advantages,
        is_correct=is_correct,
        ref_logprobs=ref_at_token if needs.ref_logprobs else None,
        anchor=anchor,
        entropy=-(policy.exp() * policy).sum(1) if needs.entropy else None,
        full_kl=(policy.exp() * (policy - reference)).sum(1) if needs.full_kl else None,
        columns=dict.fromkeys(needs.columns, torch.ones_like(advantages)),
    )
    if needs.completions:
        with torch.no_grad():
            own = loss.completion_columns(detached(inputs))
        inputs = replace(inputs, columns={**inputs.columns, **own})
    return inputs

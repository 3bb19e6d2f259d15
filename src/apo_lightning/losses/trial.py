"""A loss is tried on eight made-up tokens before a run: in the run a wrong one would fail late, or never be called."""

import traceback

import torch
from torch import Tensor

from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.losses.minibatch_tokens import MinibatchTokens
from apo_lightning.losses.policy_loss import PolicyLoss, masks_of
from apo_lightning.types import Anchor, LossInputs, LossOutput

NUM_TOKENS = 8


@torch.enable_grad()
def try_loss(loss: PolicyLoss) -> None:
    """Call a loss as the update does, on completions of three tokens with A = 1, of three with −1, and of two with 0.

    Raises:
        ConfigError: it fails, returns something else than a differentiable value for each token, or has a gradient on
            a token that its `gradient_mask` leaves out.
    """
    name = type(loss).__name__
    try:
        inputs, logits = _inputs(loss)
        output = loss(inputs)
        masks = masks_of(loss, inputs.advantages, inputs.is_correct)
    except ConfigError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f" ({frame.filename}:{frame.lineno})" if frame.filename != __file__ else ""
        failure = f"{type(error).__name__}: {in_brief(error)}{where}"
        raise ConfigError(
            f"algo.loss is {name}, which fails on {NUM_TOKENS} made-up tokens: {failure}; a loss takes LossInputs and "
            "returns LossOutput"
        ) from error
    if not isinstance(output, LossOutput):
        raise ConfigError(
            f"algo.loss is {name}, which returns a {type(output).__name__}: return LossOutput(per_token=…), with one "
            "value a token, before any mean"
        )
    of_tokens = {
        "per_token": output.per_token,
        **output.metrics,
        "gradient_mask": masks.gradient,
        "reference_mask": masks.reference,
    }
    for key, values in of_tokens.items():
        if values.shape != (NUM_TOKENS,):
            raise ConfigError(
                f"algo.loss is {name}, whose {key} has the shape {list(values.shape)} for {NUM_TOKENS} tokens: give "
                "one value a token"
            )
    if not output.per_token.requires_grad:
        raise ConfigError(
            f"algo.loss is {name}, whose per_token has no gradient on {NUM_TOKENS} made-up tokens: compute it from "
            "inputs.logprobs without .detach()"
        )
    (gradient,) = torch.autograd.grad(output.per_token.sum(), logits, retain_graph=True)
    for what, values in (("per_token", output.per_token[:, None]), ("gradient", gradient)):
        wrong = ~values.isfinite().all(1)
        if wrong.any():
            found = ", ".join(f"{value:g}" for value in inputs.advantages[wrong].unique().tolist())
            raise ConfigError(
                f"algo.loss is {name}, whose {what} is not finite on {int(wrong.sum())} of {NUM_TOKENS} made-up "
                f"tokens, of advantages {found}: mind what is 0 in a division, root or logarithm"
            )
    left_out = output.per_token[~masks.gradient].sum()
    if torch.autograd.grad(left_out, logits)[0].any():
        raise ConfigError(
            f"algo.loss is {name}, which has a gradient on tokens that its gradient_mask leaves out, and which are not "
            "run: let gradient_mask be true there"
        )


def _inputs(loss: PolicyLoss) -> tuple[LossInputs, Tensor]:
    """What the update would hand to the loss, and the logits; ratios are 1.01, and policy and reference differ."""
    needs = loss.needs
    vocab_size = max(32, 2 * needs.anchor_size, 2 * needs.candidate_size)
    logits = torch.arange(float(NUM_TOKENS * vocab_size)).sin().view(NUM_TOKENS, vocab_size).requires_grad_()
    policy, reference = logits.log_softmax(1), (1.1 * logits.detach()).log_softmax(1)
    token_ids = torch.arange(NUM_TOKENS)
    at_token = policy.gather(1, token_ids[:, None])[:, 0]
    entropy = -(policy.exp() * policy).sum(1)
    sequence_ids = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])
    advantages = torch.tensor([1.0, -1.0, 0.0])[sequence_ids]
    old = at_token.detach() - 0.01
    marks = sequence_values = anchor = own_ids = None
    if needs.marks:
        marks = loss.marks(
            MinibatchTokens(advantages=advantages, is_correct=advantages > 0, logprobs=old, keys=token_ids)
        )
    if needs.sequence_values:
        sequence_values = loss.sequence_values(at_token.detach() - old, entropy.detach(), advantages, sequence_ids)
    if needs.anchor_size:
        top = reference.topk(needs.anchor_size)
        anchor = Anchor(token_ids=top.indices, ref_logprobs=top.values, logprobs=policy.gather(1, top.indices))
    if needs.candidate_size:
        own_ids = policy.detach().topk(needs.candidate_size).indices
    inputs = LossInputs(
        token_ids=token_ids,
        sequence_ids=sequence_ids,
        logprobs=at_token,
        old_logprobs=old,
        advantages=advantages,
        is_correct=advantages > 0,
        ref_logprobs=reference.gather(1, token_ids[:, None])[:, 0] if needs.ref_logprobs else None,
        anchor=anchor,
        entropy=entropy if needs.entropy else None,
        full_kl=(policy.exp() * (policy - reference)).sum(1) if needs.full_kl else None,
        marks=marks,
        sequence_values=sequence_values,
        candidate_ids=own_ids,
        candidate_logprobs=None if own_ids is None else policy.gather(1, own_ids),
    )
    return inputs, logits

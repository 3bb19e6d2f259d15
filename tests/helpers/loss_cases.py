"""Tokens to try losses on: the same facts once as `LossInputs` and once as the reference's plain-Python tokens."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import torch
from hydra.utils import instantiate

from apo_lightning.losses.policy_loss import Importance
from apo_lightning.types import Anchor, LossInputs, detached
from apo_methods.losses.minibatch_tokens import MinibatchTokens
from composing import composed, names
from reference.token_losses import Token, log_softmax, top_k

ALGORITHMS = names("algo")
VOCAB = 12


@functools.cache
def algorithm(name):
    """The node `algo` of one algorithm file, without what other files give it."""
    return composed(config_name=f"algo/{name}").algo


def configured_loss(name, **changes):
    """The loss of one algorithm, with some of its fields changed."""
    return replace(instantiate(algorithm(name).loss), **changes)


def settings_of(loss):
    return {"loss": type(loss).__name__} | {field.name: getattr(loss, field.name) for field in fields(loss)}


@dataclass(frozen=True)
class Case:
    """T tokens over a small vocabulary. `ref_logits` rows are None where the reference was not run."""

    logits: torch.Tensor
    token_ids: torch.Tensor
    old_logprobs: torch.Tensor
    advantages: torch.Tensor
    is_correct: torch.Tensor
    ref_logits: list
    rollout_logprobs: torch.Tensor | None = None
    """None: those of the engine are `old_logprobs`, and no loss corrects for it."""
    columns: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def prepared(self, loss) -> "Case":
        """With the columns that the loss reads of the whole mini-batch and of whole completions."""
        columns = {}
        if loss.needs.columns:
            tokens = {name: getattr(self, name) for name in ("advantages", "is_correct")}
            keys = torch.arange(len(self.token_ids))
            marks = loss.marks(MinibatchTokens(**tokens, logprobs=self.old_logprobs, keys=keys))
            # Of the renormalised proxy: above the old policy, and so above the current one on about half of the tokens.
            proxy = torch.where(marks > 0, self.old_logprobs + 0.1, -torch.inf)
            columns |= {"marks": marks, "proxy_logprobs": proxy}
        if loss.needs.completions:
            columns |= loss.completion_columns(detached(self.inputs(loss.needs, self.logits.double())))
        return replace(self, columns=columns)

    def tokens(self):
        rollout = self.old_logprobs if self.rollout_logprobs is None else self.rollout_logprobs
        for t in range(len(self.logits)):
            columns = {name: values[t].item() for name, values in self.columns.items()}
            yield Token(
                logits=self.logits[t].double().tolist(),
                y=int(self.token_ids[t]),
                old_logprob=self.old_logprobs[t].item(),
                advantage=self.advantages[t].item(),
                is_correct=bool(self.is_correct[t]),
                ref_logits=self.ref_logits[t],
                importance_weight=math.exp(self.old_logprobs[t].item() - rollout[t].item()),
                mark=columns.get("marks", 0.0),
                proxy_logprob=columns.get("proxy_logprobs", -math.inf),
                sequence_value=columns.get("completion_mean", columns.get("place", 0.0)),
            )

    def inputs(self, needs, logits, logprobs=None) -> LossInputs:
        """What the module would hand to the loss; the gradient flows to `logits`."""
        logprobs = logits.log_softmax(1) if logprobs is None else logprobs
        ref = [None if row is None else log_softmax(row) for row in self.ref_logits]
        at_y = [0.0 if row is None else row[int(y)] for row, y in zip(ref, self.token_ids, strict=True)]
        return LossInputs(
            token_ids=self.token_ids,
            sequence_ids=torch.arange(len(self.token_ids)) // 4,
            logprobs=logprobs.gather(1, self.token_ids[:, None])[:, 0],
            old_logprobs=self.old_logprobs.to(logits.dtype),
            advantages=self.advantages.to(logits.dtype),
            is_correct=self.is_correct,
            ref_logprobs=torch.tensor(at_y, dtype=logits.dtype) if needs.ref_logprobs else None,
            anchor=self._anchor(needs.anchor_size, ref, logprobs) if needs.anchor_size else None,
            entropy=entropy(logprobs) if needs.entropy else None,
            full_kl=self._full_kl(ref, logprobs) if needs.full_kl else None,
            rollout_logprobs=None if self.rollout_logprobs is None else self.rollout_logprobs.to(logits.dtype),
            columns={name: values.to(logits.dtype) for name, values in self.columns.items()},
        )

    def _anchor(self, k, ref, logprobs):
        ids = torch.full((len(ref), k), -1)
        ref_logprobs = torch.full((len(ref), k), -torch.inf, dtype=logprobs.dtype)
        for t, row in enumerate(ref):
            if row is not None:
                chosen = top_k(self.ref_logits[t], k)
                ids[t, : len(chosen)] = torch.tensor(chosen)
                ref_logprobs[t, : len(chosen)] = torch.tensor([row[v] for v in chosen], dtype=logprobs.dtype)
        at_ids = logprobs.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
        return Anchor(token_ids=ids, ref_logprobs=ref_logprobs, logprobs=at_ids)

    def _full_kl(self, ref, logprobs):
        table = torch.tensor([[0.0] * VOCAB if row is None else row for row in ref], dtype=logprobs.dtype)
        table = table.view(-1, VOCAB)
        return (logprobs.exp() * (logprobs - table)).sum(1)


def entropy(logprobs):
    return -(logprobs.exp() * logprobs).sum(1)


def make_case(kind, num_tokens=48, seed=0):
    """Random tokens of one kind; advantages are negative, positive and zero in turn."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(num_tokens, VOCAB, generator=generator) * 2
    ref = (logits + 0.5 * torch.randn(num_tokens, VOCAB, generator=generator)).double()
    token_ids = torch.randint(VOCAB, (num_tokens,), generator=generator)
    at_y = logits.log_softmax(1).gather(1, token_ids[:, None])[:, 0]
    log_ratio = 0.3 * torch.randn(num_tokens, generator=generator)
    advantages = torch.randn(num_tokens, generator=generator).abs() * torch.tensor([-1.0, -1.0, 1.0, 0.0]).repeat(
        num_tokens // 4
    )
    is_correct = torch.rand(num_tokens, generator=generator) < 0.5
    if kind == "far":  # beyond the clamp on either side, and within the clip's flat parts
        log_ratio = torch.tensor([-30.0, 25.0, -2.0, 2.0, 15.0, -15.0]).repeat(num_tokens // 6)
    if kind == "confident":  # max π_ref > 1 − 1e-9; every second time the sampled token is not the favourite
        ref = ref + 30 * torch.nn.functional.one_hot((token_ids + torch.arange(num_tokens) % 2) % VOCAB, VOCAB)
    if kind == "narrow":  # the reference supports three tokens only
        ref[:, 3:] = -torch.inf
        token_ids %= 3
        at_y = logits.log_softmax(1).gather(1, token_ids[:, None])[:, 0]
    rows, old_logprobs, rollout_logprobs = ref.tolist(), at_y - log_ratio, None
    if kind == "absent":
        rows = [row if t % 2 else None for t, row in enumerate(rows)]
    if kind == "weighted":
        rollout_logprobs = old_logprobs - torch.rand(num_tokens, generator=generator).mul(2).log()
    return Case(
        logits=logits,
        token_ids=token_ids,
        old_logprobs=old_logprobs,
        advantages=advantages,
        is_correct=is_correct,
        ref_logits=rows,
        rollout_logprobs=rollout_logprobs,
    )


def value_and_gradient(loss, case, dtype=torch.float32):
    """(per-token loss, its gradient by the logits, the output); in a weighted case the loss corrects for the engine."""
    if case.rollout_logprobs is not None:
        loss = replace(loss, importance=Importance("token_truncate", math.inf))
    case, logits = case.prepared(loss), case.logits.to(dtype).requires_grad_()
    output = loss(case.inputs(loss.needs, logits))
    (gradient,) = torch.autograd.grad(output.per_token.sum(), logits)
    return output.per_token.detach(), gradient, output

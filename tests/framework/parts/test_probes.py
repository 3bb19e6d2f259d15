"""What a callback asks of tokens of its choice is what full logits say, before and after a whole update."""

import copy

import pytest
import torch

from apo_lightning.callbacks import StepCallback
from apo_lightning.types import Needs, Probe
from running import SIGNAL, train_tiny

CHOSEN = (0, 1, 5)
GIVEN = (7, -1, 3)


class Asking(StepCallback):
    """Asks three completions of the step, and the reference's three likeliest tokens."""

    needs = Needs(reference_model=True)
    every_n_steps = 2

    def __init__(self):
        self.seen = []

    def setup(self, trainer, pl_module, stage):
        self.module = pl_module
        self.reference = self.__dict__.get("reference") or copy.deepcopy(pl_module.policy.model)

    def anchors(self, num_tokens):
        return 3

    def sequences(self, rollouts):
        chosen = [rollouts.completions[b].token_ids for b in CHOSEN]
        return [rollouts.prompts[b // rollouts.group_size].token_ids for b in CHOSEN], chosen

    def probe(self, rollouts, advantages):
        self.old = copy.deepcopy(self.module.policy.model)
        prompts, completions = self.sequences(rollouts)
        num_tokens = sum(map(len, completions))
        return Probe(prompts=prompts, completions=completions, anchors=self.anchors(num_tokens), before=True)

    def on_step(self, step):
        self.seen.append((step, step.probes[self.state_key], self.old, copy.deepcopy(self.module.policy.model)))


class AskingById(Asking):
    """Names the tokens itself."""

    needs = Needs()

    def anchors(self, num_tokens):
        return torch.tensor([GIVEN]).expand(num_tokens, -1)


class AskingNothing(Asking):
    """Has no completion to ask about."""

    def sequences(self, rollouts):
        return [], []


def asked(folder, kind, *overrides):
    asking = f"+callbacks.asking._target_={__name__}.{kind.__name__}"
    module = train_tiny(folder, *SIGNAL, asking, "optimizer.lr=1e-2", "temperature=0.7", *overrides)
    (callback,) = [c for c in module.trainer.callbacks if isinstance(c, Asking)]
    return callback


@torch.no_grad()
def full_logprobs(model, probe):
    """log softmax(logits/τ) [T, V] of every completion token, each sequence on its own."""
    rows = []
    for prompt, completion in zip(probe.prompts, probe.completions, strict=True):
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0]
        rows.append((logits[len(prompt) - 1 : -1] / 0.7).log_softmax(1))
    return torch.cat(rows)


@pytest.mark.parametrize(("kind", "tokens_per_microbatch"), [(Asking, 40), (AskingById, 4096)])
def test_the_answer_is_what_full_logits_say(tmp_path, kind, tokens_per_microbatch):
    callback = asked(tmp_path, kind, "algo=grpo", f"tokens_per_microbatch={tokens_per_microbatch}")
    [(step, answer, old, new)] = callback.seen
    assert step.step == 2
    token_ids = torch.tensor([token for completion in answer.probe.completions for token in completion])
    ids = torch.tensor([GIVEN]).expand(len(token_ids), -1)
    if kind is Asking:
        reference = full_logprobs(callback.reference, answer.probe)
        top = reference.topk(3, dim=1)
        torch.testing.assert_close(answer.reference.anchor_logprobs, top.values, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(answer.reference.logprobs, reference.gather(1, token_ids[:, None])[:, 0])
        ids = answer.reference.anchor_ids
        assert torch.equal(ids, top.indices)
    else:
        assert answer.reference is None
    for statistics, model in ((answer.before, old), (answer.after, new)):
        logprobs = full_logprobs(model, answer.probe)
        torch.testing.assert_close(statistics.logprobs, logprobs.gather(1, token_ids[:, None])[:, 0])
        torch.testing.assert_close(statistics.max_prob, logprobs.exp().amax(1))
        torch.testing.assert_close(statistics.entropy, -(logprobs.exp() * logprobs).sum(1))
        wanted = logprobs.gather(1, ids.clamp(min=0)).masked_fill(ids < 0, -torch.inf)
        torch.testing.assert_close(statistics.anchor_logprobs, wanted)
    assert (answer.after.logprobs - answer.before.logprobs).abs().max() > 1e-3


def test_nothing_asked_is_an_empty_answer(tmp_path):
    [(_, answer, _, _)] = asked(tmp_path, AskingNothing, "algo=grpo").seen
    assert answer.after.logprobs.shape == (0,)
    assert answer.after.anchor_logprobs.shape == answer.reference.anchor_ids.shape == (0, 3)

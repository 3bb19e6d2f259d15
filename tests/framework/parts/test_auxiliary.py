"""An auxiliary term: its gradient is that of a plain mean over what is drawn, whatever micro-batches and ranks."""

from dataclasses import replace

import pytest
import torch

from apo_lightning.distributed.gathering import Ranks
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import PackedSequences
from apo_lightning.parts.auxiliary import Auxiliary, Stored
from apo_lightning.step.plan import Minibatch, StepPlan
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages, LossOutput, Needs
from composing import tiny_policy, tiny_spec
from factories import SETTINGS, make_rollouts, make_setup

PACKED = PackedSequences(
    prompts=[(5, 6, 7), (9, 8)],
    completions=[(11, 12), (13, 14, 15, 16), (17,), (18, 19, 20), (21, 22)],
    owners=[0, 1, 1, 0, 1],
)
TEMPERATURE = SETTINGS.temperature


class OneOf(Ranks):
    """A rank whose maxima are its own: fewer micro-batches than the other's are not padded."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def max(self, value):
        return float(value)


class Squares:
    """Half the squared log-ratio."""

    def __init__(self, completions_per_minibatch):
        self.completions_per_minibatch = completions_per_minibatch

    def load(self, prompts, tokenizer, max_completion_tokens):
        raise NotImplementedError

    def __call__(self, logprobs, ref_logprobs):
        log_ratio = logprobs - ref_logprobs
        return LossOutput(per_token=log_ratio.square() / 2, metrics={"own/log_ratio": log_ratio.detach()})


def setup_of(policy, ranks=None, seed=1, budget=64):
    settings = replace(SETTINGS, tokens_per_microbatch=budget)
    return make_setup(policy=policy, settings=settings, ranks=ranks or OneOf(0, 1), seed=seed)


def terms(auxiliary, setup, step, minibatch):
    """The functions of one mini-batch of a step."""
    rollouts = make_rollouts(["correct"], 1, step=step)
    nothing = torch.zeros(1, 1)
    table = StepTable(rollouts, Advantages(values=nothing, keep=nothing.bool()), torch.device("cpu"))
    planned = Minibatch(
        number=minibatch, completions=[], microbatches=[], weights=torch.zeros(2), num_padding=0, num_tokens=1
    )
    mask = torch.zeros(2, dtype=torch.bool)
    plan = StepPlan(table=table, minibatches=[planned], reference_mask=mask, diagnostic_needs=Needs(), unscored=[])
    return auxiliary.terms(setup, plan, planned)


def plain_logprobs(model, b):
    """log π of each token of a completion, from all logits of its sequence alone, in float64."""
    prompt, completion = PACKED.prompts[PACKED.owners[b]], PACKED.completions[b]
    logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
    return logits.log_softmax(1).gather(1, torch.tensor(completion)[:, None])[:, 0]


def totals(seed=1):
    model = tiny_spec().load_model(seed=seed).double()
    with torch.no_grad():
        return [float(plain_logprobs(model, b).sum()) for b in range(len(PACKED.completions))]


def scored(num_drawn):
    """A term of which the model of seed 1 is the one before training."""
    auxiliary = Auxiliary(Squares(num_drawn), Stored(sequences=PACKED, logprobs=totals()))
    auxiliary.begin(setup_of(tiny_policy(seed=1)))
    return auxiliary


def drawn(auxiliary, **run):
    """The completions that a mini-batch runs, by the index of their first token."""
    parts = terms(auxiliary, setup_of(None, **run), 3, 1)
    index = torch.cat([part.args[1].token_index for part in parts]).tolist()
    return [b for b, start in enumerate(PACKED.starts) if start in index]


def gradient(auxiliary, policy, step=3, minibatch=1, **run):
    policy.zero_grad()
    losses = [part() for part in terms(auxiliary, setup_of(policy, **run), step, minibatch)]
    for loss in losses:
        loss.backward()
    grads = {name: p.grad.clone() for name, p in policy.named_parameters() if p.grad is not None}
    return sum(loss.item() for loss in losses), grads


@pytest.mark.parametrize("budget", [64, 5])
def test_value_and_gradient_are_those_of_a_mean_over_plain_forwards_in_float64(budget):
    auxiliary, policy = scored(num_drawn=3), tiny_policy(seed=2)
    chosen = drawn(auxiliary)
    assert len(chosen) == 3
    value, grads = gradient(auxiliary, policy, budget=budget)

    now, before = (tiny_spec().load_model(seed=seed).double() for seed in (2, 1))
    with torch.no_grad():
        ref = torch.cat([plain_logprobs(before, b) for b in chosen])
    log_ratio = torch.cat([plain_logprobs(now, b) for b in chosen]) - ref
    loss = (log_ratio.square() / 2).mean()
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=1e-5)
    for name, parameter in now.named_parameters():
        torch.testing.assert_close(grads[f"model.{name}"].double(), parameter.grad, rtol=1e-3, atol=1e-6)
    metrics = auxiliary.metrics(None, None)
    assert metrics == {"own/log_ratio": pytest.approx(log_ratio.mean().item(), abs=1e-6)}
    assert auxiliary.metrics(None, None) == {}, "forgotten"


def test_two_ranks_share_what_one_draws():
    auxiliary, policy = scored(num_drawn=3), tiny_policy(seed=2)
    ranks = [OneOf(rank, 2) for rank in (0, 1)]
    assert sorted(b for own in ranks for b in drawn(auxiliary, ranks=own)) == drawn(auxiliary)
    value, grads = gradient(auxiliary, policy)
    shares = [gradient(auxiliary, policy, ranks=own) for own in ranks]
    assert sum(own for own, _ in shares) == pytest.approx(value, rel=1e-5)
    for name, whole in grads.items():
        torch.testing.assert_close(shares[0][1][name] + shares[1][1][name], whole, rtol=1e-3, atol=1e-6)


def test_the_draw_depends_on_seed_step_and_mini_batch():
    auxiliary = scored(num_drawn=2)

    def draws(**run):
        policy = tiny_policy(seed=2)
        return {(s, m): gradient(auxiliary, policy, s, m, **run)[0] for s in (1, 2, 3) for m in (0, 1, 2)}

    first = draws()
    assert len(set(first.values())) > 3
    assert draws() == first
    assert draws(seed=2) != first


def test_of_fewer_completions_than_asked_for_all_are_drawn():
    assert drawn(scored(num_drawn=99)) == [0, 1, 2, 3, 4]


def test_completions_of_another_model_are_refused():
    stored = Stored(sequences=PACKED, logprobs=totals(seed=2))
    with pytest.raises(ConfigError, match=r"differ by \d+\.\d+ nats a token"):
        Auxiliary(Squares(1), stored).begin(setup_of(tiny_policy(seed=1)))

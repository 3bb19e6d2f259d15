"""A completion is scored as a plain float64 forward of it alone would score it, in the order it was given."""

import copy
import random

import pytest
import torch

from apo_lightning.callbacks.distribution_monitor import support_facts
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.scoring import completion_means, microbatches, pack
from apo_lightning.model.policy import Policy
from apo_lightning.types import Anchor, Prompt
from composing import tiny_policy
from factories import make_step


@pytest.fixture(scope="module")
def policy() -> Policy:
    return tiny_policy()


@pytest.fixture(scope="module")
def reference() -> Policy:
    return tiny_policy(2)


def prompt(*token_ids, identifier="p") -> Prompt:
    return Prompt(id=identifier, problem="", answer="", text="", token_ids=token_ids)


A, B, C = prompt(5, 6, 7), prompt(9), prompt(4, 4, 8, 30, 31)
PROMPTS = [A, B, A, C, B, A]
COMPLETIONS = [[11, 12], [13, 14, 15, 16], [17], [40, 41, 42], [50], [60, 61, 62, 63, 64, 65]]


def scored(policy, reference=None, anchor_size=0, **settings):
    settings = {"temperature": 1.0, "tokens_per_microbatch": 64, **settings}
    return completion_means(policy, PROMPTS, COMPLETIONS, reference=reference, anchor_size=anchor_size, **settings)


@torch.no_grad()
def log_probs(policy, prompt, completion, temperature):
    logits = copy.deepcopy(policy.model).double()(torch.tensor([[*prompt.token_ids, *completion]])).logits[0]
    return (logits[len(prompt.token_ids) - 1 : -1] / temperature).log_softmax(-1)


def naive(policy, reference, anchor_size, prompt, completion, temperature):
    """Each statistic from its definition, with a plain sort for the reference's most likely tokens."""
    mine, theirs = log_probs(policy, prompt, completion, temperature), log_probs(reference, prompt, completion, 1.0)
    tops = [sorted(range(len(row)), key=lambda v: (-row[v].item(), v))[:anchor_size] for row in theirs]
    return {
        "entropy": -(mine.exp() * mine).sum(-1).mean().item(),
        "max_prob": mine.exp().amax(-1).mean().item(),
        "support_coverage": sum(mine[t, top].exp().sum().item() for t, top in enumerate(tops)) / len(tops),
        "outside_support": sum(y not in top for y, top in zip(completion, tops, strict=True)) / len(tops),
    }


@pytest.mark.parametrize("tokens_per_microbatch", [1, 12, 1000])
@pytest.mark.parametrize(("anchor_size", "temperature"), [(1, 1.0), (8, 0.6), (90, 1.0)])
def test_the_means_are_those_of_the_definition(policy, reference, anchor_size, temperature, tokens_per_microbatch):
    settings = {"temperature": temperature, "tokens_per_microbatch": tokens_per_microbatch}
    found = scored(policy, reference, anchor_size, **settings)
    for one, p, c in zip(found, PROMPTS, COMPLETIONS, strict=True):
        assert one == pytest.approx(naive(policy, reference, anchor_size, p, c, temperature), abs=2e-5)
    alone = scored(policy, **settings)
    assert [{name: row[name] for name in ("entropy", "max_prob")} for row in found] == alone


def test_what_else_is_scored_changes_nothing_but_noise(policy):
    order = random.Random(0).sample(range(6), 6)
    settings = {"temperature": 1.0, "tokens_per_microbatch": 20}
    shuffled = completion_means(policy, [PROMPTS[i] for i in order], [COMPLETIONS[i] for i in order], **settings)
    together = scored(policy)
    for place, i in enumerate(order):
        [alone] = completion_means(policy, [PROMPTS[i]], [COMPLETIONS[i]], **settings)
        assert alone == pytest.approx(together[i], abs=1e-5)
        assert shuffled[place] == pytest.approx(together[i], abs=1e-5)
    assert completion_means(policy, [], [], **settings) == []


def test_the_whole_vocabulary_holds_all_of_the_mass(policy, reference):
    found = scored(policy, reference, len(policy.head_weight))
    assert [row["support_coverage"] for row in found] == pytest.approx([1.0] * 6, abs=1e-6)
    assert not any(row["outside_support"] for row in found)


def test_training_logs_the_same_support(policy, reference):
    # The anchors of one completion's tokens are handed to the training diagnostic.
    theirs = log_probs(reference, B, COMPLETIONS[1], 1.0).topk(4)
    mine = log_probs(policy, B, COMPLETIONS[1], 1.0).gather(1, theirs.indices)
    anchor = Anchor(token_ids=theirs.indices, ref_logprobs=theirs.values.float(), logprobs=mine.float())
    step = make_step(("correct",), group_size=1, lengths=[4], ref_logprobs=torch.zeros(4), anchor=anchor)
    found = scored(policy, reference, 4)[1]["support_coverage"]
    assert found == pytest.approx(support_facts(step.tokens, 4).coverage.mean().item(), abs=1e-5)


def test_a_prompt_with_several_completions_runs_once(policy):
    (shared,) = microbatches(pack([A] * 3, [[1], [2, 3], [4]]), [policy], 1000)
    assert shared.input_ids.tolist() == [5, 6, 7, 2]


def test_dropout_is_off():
    policy = tiny_policy()
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    policy.train()
    assert scored(policy) == scored(policy)


@pytest.mark.parametrize(
    ("prompts", "completions", "temperature", "anchor_size", "message"),
    [
        ([prompt(1, identifier="q7")], [[]], 1.0, 1, "problem 'q7' has a completion without tokens"),
        ([prompt(identifier="q8")], [[1]], 1.0, 1, "problem 'q8' has a prompt without tokens"),
        ([A], [[1]], 0.0, 1, "temperature is 0"),
        ([A], [[1]], 1.0, 0, "anchor_size is 0"),
    ],
)
def test_what_cannot_be_scored_is_named(policy, reference, prompts, completions, temperature, anchor_size, message):
    settings = {"temperature": temperature, "reference": reference, "anchor_size": anchor_size}
    with pytest.raises(ConfigError, match=message):
        completion_means(policy, prompts, completions, tokens_per_microbatch=64, **settings)

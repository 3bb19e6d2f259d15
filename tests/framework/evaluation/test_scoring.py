"""A completion is scored as a plain forward of it alone would score it, in the order it was given."""

import copy
import random

import pytest
import torch
from hydra.utils import instantiate

from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.scoring import completion_means, microbatches, pack
from apo_lightning.model.policy import Policy
from apo_lightning.types import Prompt
from composing import composed


def new_policy(seed=1) -> Policy:
    spec = instantiate(composed("model=tiny").model, _convert_="all")
    return Policy(spec.load_model(seed=seed), spec.load_tokenizer(), torch.float32)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy()


def prompt(*token_ids, identifier="p") -> Prompt:
    return Prompt(id=identifier, problem="", answer="", text="", token_ids=token_ids)


A, B, C = prompt(5, 6, 7), prompt(9), prompt(4, 4, 8, 30, 31)
PROMPTS = [A, B, A, C, B, A]
COMPLETIONS = [[11, 12], [13, 14, 15, 16], [17], [40, 41, 42], [50], [60, 61, 62, 63, 64, 65]]


@torch.no_grad()
def naive(policy, prompt, completion, temperature):
    """Each statistic from its definition, over one whole float64 forward."""
    model = copy.deepcopy(policy.model).double()
    logits = model(torch.tensor([[*prompt.token_ids, *completion]])).logits[0]
    log_probs = (logits[len(prompt.token_ids) - 1 : -1] / temperature).log_softmax(-1)
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean().item()
    return entropy, log_probs.exp().amax(-1).mean().item()


def as_tuples(found):
    return [(one["entropy"], one["max_prob"]) for one in found]


@pytest.mark.parametrize("tokens_per_microbatch", [1, 12, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_statistics_are_those_of_a_plain_forward_of_each_completion(policy, temperature, tokens_per_microbatch):
    found = completion_means(
        policy, PROMPTS, COMPLETIONS, temperature=temperature, tokens_per_microbatch=tokens_per_microbatch
    )
    expected = [naive(policy, p, c, temperature) for p, c in zip(PROMPTS, COMPLETIONS, strict=True)]
    for one, other in zip(as_tuples(found), expected, strict=True):
        assert one == pytest.approx(other, abs=2e-5)


def test_what_else_is_scored_changes_nothing_but_noise(policy):
    together = completion_means(policy, PROMPTS, COMPLETIONS, temperature=1.0, tokens_per_microbatch=64)
    order = random.Random(0).sample(range(6), 6)
    shuffled = completion_means(
        policy,
        [PROMPTS[i] for i in order],
        [COMPLETIONS[i] for i in order],
        temperature=1.0,
        tokens_per_microbatch=20,
    )
    for place, i in enumerate(order):
        alone = completion_means(policy, [PROMPTS[i]], [COMPLETIONS[i]], temperature=1.0, tokens_per_microbatch=64)
        assert as_tuples(alone)[0] == pytest.approx(as_tuples(together)[i], abs=1e-5)
        assert as_tuples(shuffled)[place] == pytest.approx(as_tuples(together)[i], abs=1e-5)


def test_a_prompt_with_several_completions_runs_once(policy):
    (shared,) = microbatches(pack([A] * 3, [[1], [2, 3], [4]]), [policy], 1000)
    assert shared.input_ids.tolist() == [5, 6, 7, 2]


def test_dropout_is_off_and_no_gradient_is_kept():
    policy = new_policy()
    policy.model.config.attention_dropout = 0.9
    for layer in policy.model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    policy.train()
    first, second = (
        completion_means(policy, PROMPTS, COMPLETIONS, temperature=1.0, tokens_per_microbatch=64) for _ in range(2)
    )
    assert first == second


def test_nothing_to_score_is_an_empty_list(policy):
    assert completion_means(policy, [], [], temperature=1.0, tokens_per_microbatch=64) == []


@pytest.mark.parametrize(
    ("prompts", "completions", "message"),
    [
        ([prompt(1, identifier="q7")], [[]], "problem 'q7' has a completion without tokens"),
        ([prompt(identifier="q8")], [[1]], "problem 'q8' has a prompt without tokens"),
    ],
)
def test_what_cannot_be_scored_is_named(policy, prompts, completions, message):
    with pytest.raises(ConfigError, match=message):
        completion_means(policy, prompts, completions, temperature=1.0, tokens_per_microbatch=64)


def test_a_greedy_temperature_has_no_distribution(policy):
    with pytest.raises(ConfigError, match="temperature is 0"):
        completion_means(policy, [A], [[1]], temperature=0.0, tokens_per_microbatch=64)

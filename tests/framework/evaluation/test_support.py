"""What a trained policy keeps on its reference's likeliest tokens, against full logits and a plain sort."""

import copy

import pytest
import torch
from hydra.utils import instantiate

from apo_lightning.callbacks.distribution_monitor import support_facts
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.scoring import completion_means
from apo_lightning.model.policy import Policy
from apo_lightning.types import Anchor, Prompt
from composing import composed
from factories import make_step


def new_policy(seed) -> Policy:
    spec = instantiate(composed("model=tiny").model, _convert_="all")
    return Policy(spec.load_model(seed=seed), spec.load_tokenizer(), torch.float32)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return new_policy(1)


@pytest.fixture(scope="module")
def reference() -> Policy:
    return new_policy(2)


def prompt(identifier, *token_ids) -> Prompt:
    return Prompt(id=identifier, problem="", answer="", text="", token_ids=token_ids)


PROMPTS = [prompt("b", 5, 6, 7), prompt("a", 9), prompt("b", 5, 6, 7), prompt("c", 9), prompt("a", 9)]
COMPLETIONS = [[11, 12], [13, 14, 15, 16], [17], [40, 41, 42], [50, 51]]


@torch.no_grad()
def log_probs(policy, prompt, completion, temperature):
    logits = copy.deepcopy(policy.model).double()(torch.tensor([[*prompt.token_ids, *completion]])).logits[0]
    return (logits[len(prompt.token_ids) - 1 : -1] / temperature).log_softmax(-1)


def naive(policy, reference, anchor_size, temperature):
    """(mean J, share of tokens outside T_K) of each completion."""
    rows = []
    for one, completion in zip(PROMPTS, COMPLETIONS, strict=True):
        mine = log_probs(policy, one, completion, temperature).exp()
        theirs = log_probs(reference, one, completion, 1.0)
        masses, outside = [], []
        for t, token in enumerate(completion):
            top = sorted(range(theirs.shape[1]), key=lambda v: (-theirs[t, v].item(), v))[:anchor_size]
            masses.append(mine[t, top].sum().item())
            outside.append(token not in top)
        rows.append((sum(masses) / len(masses), sum(outside) / len(outside)))
    return rows


@pytest.mark.parametrize("tokens_per_microbatch", [1, 15, 1000])
@pytest.mark.parametrize(("anchor_size", "temperature"), [(1, 1.0), (8, 0.6), (90, 1.0)])
def test_the_means_are_those_of_the_definition(policy, reference, anchor_size, temperature, tokens_per_microbatch):
    found = completion_means(
        policy,
        PROMPTS,
        COMPLETIONS,
        reference=reference,
        anchor_size=anchor_size,
        temperature=temperature,
        tokens_per_microbatch=tokens_per_microbatch,
    )
    expected = naive(policy, reference, anchor_size, temperature)
    assert [row["support_coverage"] for row in found] == pytest.approx([mass for mass, _ in expected], abs=1e-5)
    assert [row["outside_support"] for row in found] == [outside for _, outside in expected]


def measure(policy, reference, anchor_size):
    return completion_means(
        policy,
        PROMPTS,
        COMPLETIONS,
        reference=reference,
        anchor_size=anchor_size,
        temperature=1.0,
        tokens_per_microbatch=100,
    )


def coverages(policy, reference, anchor_size):
    return [row["support_coverage"] for row in measure(policy, reference, anchor_size)]


def test_the_whole_vocabulary_holds_all_of_the_mass(policy, reference):
    found = measure(policy, reference, len(policy.head_weight))
    assert [row["support_coverage"] for row in found] == pytest.approx([1.0] * 5, abs=1e-6)
    assert not any(row["outside_support"] for row in found)


def test_a_larger_support_holds_more(policy, reference):
    values = [sum(coverages(policy, reference, k)) for k in (1, 2, 4, 8, 16)]
    assert values == sorted(values)
    assert values[0] < values[-1]


def test_of_all_supports_of_its_size_the_policys_own_holds_most(policy, reference):
    own, other = coverages(policy, policy, 8), coverages(policy, reference, 8)
    assert all(mine > theirs for mine, theirs in zip(own, other, strict=True))


def test_training_logs_the_same_quantity(policy, reference):
    # One completion, whose tokens' anchors are handed to the training diagnostic.
    one, completion = PROMPTS[1], COMPLETIONS[1]
    theirs = log_probs(reference, one, completion, 1.0).topk(4)
    mine = log_probs(policy, one, completion, 1.0).gather(1, theirs.indices)
    anchor = Anchor(token_ids=theirs.indices, ref_logprobs=theirs.values.float(), logprobs=mine.float())
    step = make_step(("correct",), group_size=1, lengths=[4], ref_logprobs=torch.zeros(4), anchor=anchor)
    [found] = completion_means(
        policy, [one], [completion], reference=reference, anchor_size=4, temperature=1.0, tokens_per_microbatch=100
    )
    assert found["support_coverage"] == pytest.approx(support_facts(step.tokens, 4).coverage.mean().item(), abs=1e-5)


def test_the_policys_own_means_are_the_same_with_and_without_a_reference(policy, reference):
    alone = completion_means(policy, PROMPTS, COMPLETIONS, temperature=1.0, tokens_per_microbatch=100)
    assert [{name: row[name] for name in alone[0]} for row in measure(policy, reference, 8)] == alone


def test_a_support_of_no_tokens_is_refused(policy, reference):
    with pytest.raises(ConfigError, match="anchor_size is 0"):
        measure(policy, reference, 0)

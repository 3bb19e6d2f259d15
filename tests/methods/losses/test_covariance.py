"""Clip-Cov and KL-Cov: which tokens are marked, over all ranks, and what becomes of them."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO
from apo_lightning.types import LossInputs
from apo_methods.losses import ClipCov, KLCov
from apo_methods.losses.minibatch_tokens import MinibatchTokens
from recipes import recipe_of

# mean A = 0, mean ℓ = −1.55, so cov = A·(ℓ + 1.55).
A = torch.tensor([1.0, 1.0, -1.0, -1.0])
LOGPROBS = torch.tensor([-0.1, -2.0, -0.1, -4.0])
TOKENS = MinibatchTokens(advantages=A, is_correct=A > 0, logprobs=LOGPROBS, keys=torch.tensor([3, 2, 1, 0]))
INPUTS = LossInputs(
    token_ids=torch.zeros(4).long(),
    sequence_ids=torch.arange(4),
    logprobs=torch.tensor([0.6, 0.5, 0.3, 0.25]).log(),
    old_logprobs=torch.tensor([0.5, 0.5, 0.4, 0.2]).log(),
    advantages=A,
    is_correct=A > 0,
)


def test_clip_cov_takes_the_candidate_with_the_lowest_key():
    assert ClipCov().marks(TOKENS).tolist() == [0, 0, 0, 1]
    assert ClipCov(highest=2.0).marks(TOKENS).tolist() == [1, 0, 0, 0]
    assert ClipCov(fraction=0.5).marks(TOKENS).tolist() == [1, 0, 0, 1]
    assert ClipCov(lowest=3.0).marks(TOKENS).tolist() == [0, 0, 0, 0]


def test_kl_cov_takes_the_largest():
    assert KLCov(fraction=0.25).marks(TOKENS).tolist() == [0, 0, 0, 1]
    assert KLCov(fraction=0.5).marks(TOKENS).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("marked", [0.0, 1.0])
def test_a_marked_token_of_clip_cov_has_no_objective_and_others_have_grpos(marked):
    loss = ClipCov(clip_eps=0.2)(replace(INPUTS, columns={"marks": torch.tensor([0.0, 0, 0, marked])}))
    *others, last = GRPO()(INPUTS).per_token.tolist()
    assert loss.per_token.tolist() == [*others, last * (1 - marked)]


def test_kl_cov_adds_the_absolute_log_ratio():
    # |log .6/.5| = 0.182322 and |log .25/.2| = 0.223144.
    loss = KLCov(kl_coef=2.0)(replace(INPUTS, columns={"marks": torch.tensor([1.0, 0, 0, 1])}))
    added = loss.per_token - GRPO()(INPUTS).per_token
    torch.testing.assert_close(added, torch.tensor([2 * 0.182322, 0, 0, 2 * 0.223144]), atol=1e-6, rtol=0)


def test_kl_cov_without_a_clip():
    # A = 1, r = 1.2: the same; A = −1, r = 0.75 would be clipped at 0.8.
    loss = KLCov(clip=False)(replace(INPUTS, columns={"marks": torch.zeros(4)}))
    torch.testing.assert_close(loss.per_token, torch.tensor([-1.2, -1.0, 0.75, 1.25]))


def test_refusals():
    with pytest.raises(ConfigError, match="fraction is 0"):
        ClipCov(fraction=0)
    with pytest.raises(ConfigError, match="lowest is 5"):
        ClipCov(lowest=5.0)
    with pytest.raises(ConfigError, match="set prompts_per_minibatch to a half or less"):
        KLCov().check(recipe_of())
    KLCov().check(recipe_of(minibatches_per_step=2))


@given(st.lists(st.tuples(st.sampled_from([-1.0, 0.0, 0.5, 1.0]), st.floats(-9, 0, width=32)), min_size=2, max_size=12))
def test_the_choice_does_not_depend_on_the_ranks(tokens):
    advantages, logprobs = (torch.tensor(column) for column in zip(*tokens, strict=True))
    keys = torch.arange(len(tokens)).flip(0)

    def part(here):
        return MinibatchTokens(
            advantages=advantages[here], is_correct=advantages[here] > 0, logprobs=logprobs[here], keys=keys[here]
        )

    values, among = torch.round(logprobs), advantages != 0
    whole = part(slice(None)).smallest(values, 3, among)
    halves = [slice(0, len(tokens) // 2), slice(len(tokens) // 2, None)]
    sent = []
    for here in halves:  # what each rank would send
        replace(part(here), from_all_ranks=lambda mine: sent.append(mine) or [mine]).smallest(
            values[here], 3, among[here]
        )
    both = [
        replace(part(here), from_all_ranks=lambda mine: sent).smallest(values[here], 3, among[here]) for here in halves
    ]
    assert torch.equal(torch.cat(both), whole)

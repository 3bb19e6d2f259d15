"""Advantages: by hand, by brute force, by invariants; and every estimator of `configs/algo/`."""

from itertools import combinations
from math import comb, sqrt

import hypothesis.strategies as st
import pytest
import torch
from hydra.utils import instantiate
from hypothesis import given

from apo_lightning.advantages import (
    GAE,
    AdvantageEstimator,
    GroupNormalized,
    LeaveOneOut,
    OverlongPenalty,
    PassAtK,
    SignedReward,
    Truncated,
)
from apo_lightning.contracts import check_group_size
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs
from loss_cases import ALGORITHMS, algorithm

CENTERED = [GroupNormalized(), GroupNormalized(normalize_std=False), LeaveOneOut()]


def inputs(rewards):
    table = torch.tensor(rewards)
    return AdvantageInputs(
        rewards=table,
        is_correct=table > 0,
        lengths=torch.ones_like(table, dtype=torch.long),
        truncated=torch.zeros_like(table, dtype=torch.bool),
        mean_logprobs=-torch.arange(table.numel()).view(table.shape) / table.numel(),
        answers=tuple(tuple(f"{value:g}" for value in row) for row in rewards),
        max_completion_tokens=8,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_estimates_advantages_for_a_group_of_eight(name):
    estimator = instantiate(algorithm(name).advantage)
    assert isinstance(estimator, AdvantageEstimator)
    check_group_size(estimator, 8)
    rewards = torch.randint(2, (6, 8), generator=torch.Generator().manual_seed(0)).float().tolist()
    advantages = estimator(inputs([*rewards, [0.0] * 8, [1.0] * 8]))
    assert advantages.values.shape == advantages.keep.shape == (8, 8)
    assert advantages.values.isfinite().all()


def test_group_normalisation_by_hand():
    """Rewards 1, 1, 0, 0: mean 1/2, variance over n − 1 = 4·(1/4)/3 = 1/3, A = ±(1/2)·√3."""
    values = GroupNormalized()(inputs([[1.0, 1.0, 0.0, 0.0]])).values
    torch.testing.assert_close(values, torch.tensor([[1.0, 1.0, -1.0, -1.0]]) * sqrt(3) / 2, rtol=0, atol=1e-5)
    values = GroupNormalized(normalize_std=False)(inputs([[1.0, 1.0, 0.0, 0.0]])).values
    torch.testing.assert_close(values, torch.tensor([[0.5, 0.5, -0.5, -0.5]]))


@pytest.mark.parametrize("estimator", CENTERED)
@given(reward=st.floats(-10, 10, width=32), size=st.integers(2, 16))
def test_equal_rewards_give_exactly_zero(estimator, reward, size):
    """0.7 eight times is 0.056 in float32 by the formula alone."""
    advantages = estimator(inputs([[reward] * size, [0.7] * size]))
    assert (advantages.values == 0).all()
    assert advantages.keep.all()


@pytest.mark.parametrize("estimator", CENTERED)
@given(rewards=st.lists(st.integers(0, 5), min_size=2, max_size=8), shift=st.integers(-3, 3))
def test_a_constant_added_to_all_rewards_changes_nothing_and_groups_sum_to_zero(estimator, rewards, shift):
    values = estimator(inputs([[float(r) for r in rewards]])).values
    shifted = estimator(inputs([[float(r + shift) for r in rewards]])).values
    torch.testing.assert_close(values, shifted, rtol=1e-4, atol=1e-4)
    assert values.sum().item() == pytest.approx(0.0, abs=1e-4)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=8))
def test_leave_one_out_is_the_distance_to_the_mean_of_the_others(rewards):
    values = LeaveOneOut()(inputs([[float(r) for r in rewards]])).values[0]
    for i, value in enumerate(values.tolist()):
        others = rewards[:i] + rewards[i + 1 :]
        assert value == pytest.approx(rewards[i] - sum(others) / len(others), abs=1e-5)


def test_groups_do_not_see_each_other():
    both = GroupNormalized()(inputs([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]])).values
    assert torch.equal(both[1:], GroupNormalized()(inputs([[1.0, 1.0, 0.0]])).values)


@pytest.mark.parametrize(
    ("weights", "values", "keep"),
    [
        ((0.0, 1.0), [0.0, -1.0], [False, True]),  # nsr
        ((1.0, 0.0), [1.0, 0.0], [True, False]),  # psr
        ((0.1, 1.0), [0.1, -1.0], [True, True]),  # weighted REINFORCE
    ],
)
def test_signed_rewards_drop_what_has_no_weight(weights, values, keep):
    advantages = SignedReward(*weights)(inputs([[1.0, 0.0]]))
    torch.testing.assert_close(advantages.values, torch.tensor([values]))
    assert advantages.keep.tolist() == [keep]


def test_groups_without_a_correct_answer_train_under_signed_rewards_even_groups_of_one():
    check_group_size(SignedReward(), 1)
    assert SignedReward()(inputs([[0.0, 0.0]])).values.tolist() == [[-1.0, -1.0]]
    assert SignedReward()(inputs([[0.0]])).values.tolist() == [[-1.0]]


def brute_force(rewards, k):
    """A completion's advantage is the mean, over the subsets of k that hold it, of the subset's normalised reward."""
    subsets = list(combinations(range(len(rewards)), k))
    scores = [float(max(rewards[i] for i in subset)) for subset in subsets]
    mean = sum(scores) / len(scores)
    std = sqrt(mean * (1 - mean)) + 1e-6
    members = comb(len(rewards) - 1, k - 1)
    return [
        sum((score - mean) / std for subset, score in zip(subsets, scores, strict=True) if i in subset) / members
        for i in range(len(rewards))
    ]


@given(st.lists(st.integers(0, 1), min_size=2, max_size=7), st.data())
def test_pass_at_k_advantages_are_those_of_all_subsets(rewards, data):
    k = data.draw(st.integers(1, len(rewards) - 1))
    values = PassAtK(k=k)(inputs([[float(r) for r in rewards]])).values[0].tolist()
    assert values == pytest.approx(brute_force(rewards, k), abs=1e-5)
    assert all(value <= 0 for value, reward in zip(values, rewards, strict=True) if not reward)


@pytest.mark.parametrize("rewards", [[0.0] * 4, [1.0] * 4, [1.0, 1.0, 1.0, 0.0]])
def test_pass_at_k_is_zero_where_every_subset_agrees(rewards):
    """With three of four correct, every pair holds a correct one."""
    assert (PassAtK(k=2)(inputs([rewards])).values == 0).all()


@pytest.mark.parametrize(
    ("estimator", "group_size", "message"),
    [
        (GroupNormalized(), 1, "group_size is 1: a group-normalised advantage needs at least 2"),
        (LeaveOneOut(), 1, "group_size is 1: a leave-one-out advantage needs at least 2"),
        (PassAtK(k=4), 4, "k is 4 with group_size 4"),
        (PassAtK(k=5), 4, "k is 5 with group_size 4"),
    ],
)
def test_groups_that_are_too_small_are_refused_before_and_during_the_run(estimator, group_size, message):
    with pytest.raises(ConfigError, match=message):
        check_group_size(estimator, group_size)
    with pytest.raises(ConfigError, match=message):
        estimator(inputs([[1.0] * group_size]))


@pytest.mark.parametrize("estimator", [PassAtK(k=1), SignedReward()])
def test_rewards_between_zero_and_one_are_refused_where_only_verdicts_make_sense(estimator):
    with pytest.raises(ConfigError, match=r"a reward is 0\.5"):
        estimator(inputs([[0.5, 1.0]]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PassAtK(k=0), "k is 0"),
        (lambda: SignedReward(positive_weight=-0.1), "positive_weight is -0.1"),
        (lambda: SignedReward(negative_weight=-1.0), "negative_weight is -1.0"),
        (lambda: SignedReward(positive_weight=0.0, negative_weight=0.0), "both 0"),
        (lambda: OverlongPenalty(cache_share=1.5), "cache_share is 1.5"),
        (lambda: Truncated(GroupNormalized(), "hide"), "how is 'hide'"),
        (lambda: GAE(gamma=0), "gamma is 0"),
        (lambda: GAE(gae_lambda=1.5), "gae_lambda is 1.5"),
        (lambda: GAE(gae_lambda_values=-0.1), "gae_lambda_values is -0.1"),
        (lambda: GAE(whiten="shift"), "whiten is 'shift': choose one of shift_scale, scale, none"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(make, message):
    with pytest.raises(ConfigError, match=message):
        make()

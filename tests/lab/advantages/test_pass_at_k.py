"""Pass@k training's advantages: by brute force over all subsets, and what is refused."""

from itertools import combinations
from math import comb, sqrt

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lab.advantages import PassAtK
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs


def inputs(rewards):
    table = torch.tensor(rewards)
    return AdvantageInputs(rewards=table, is_correct=table > 0, lengths=torch.ones_like(table, dtype=torch.long))


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


@pytest.mark.parametrize("k", [4, 5])
def test_groups_that_are_too_small_are_refused_before_and_during_the_run(k):
    with pytest.raises(ConfigError, match=f"k is {k} with group_size 4"):
        PassAtK(k=k).check(4)
    with pytest.raises(ConfigError, match=f"k is {k} with group_size 4"):
        PassAtK(k=k)(inputs([[1.0] * 4]))


def test_other_rewards_than_zero_and_one_are_refused():
    with pytest.raises(ConfigError, match=r"a reward is 0\.5"):
        PassAtK(k=1)(inputs([[0.5, 1.0]]))


def test_a_k_below_one_is_refused_by_name():
    with pytest.raises(ConfigError, match="k is 0"):
        PassAtK(k=0)

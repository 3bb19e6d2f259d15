"""Advantages of single tokens: values derived on paper, the equations as a loop, and what they reduce to."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.advantages import GAE, AdvantageEstimator, GroupNormalized, Truncated, gae_of
from apo_lightning.contracts import check_group_size
from apo_lightning.types import AdvantageInputs

VALUES = torch.tensor([0.5, 0.4, 0.6], dtype=torch.float64)
ONE = torch.tensor([1.0])
THREE = torch.tensor([3])


@pytest.mark.parametrize(
    ("settings", "advantages", "returns"),
    [
        # δ = (0.4 − 0.5, 0.6 − 0.4, 1 − 0.6) = (−0.1, 0.2, 0.4)
        ({}, [0.5, 0.6, 0.4], [1.0, 1.0, 1.0]),  # sums of δ from t on
        # 0.2 + 0.95·0.4 = 0.58, −0.1 + 0.95·0.58 = 0.451
        ({"gae_lambda": 0.95}, [0.451, 0.58, 0.4], [0.951, 0.98, 1.0]),
        ({"gae_lambda": 0.0}, [-0.1, 0.2, 0.4], [0.4, 0.6, 1.0]),  # δ alone
        ({"gae_lambda": 0.95, "gae_lambda_values": 1.0}, [0.451, 0.58, 0.4], [1.0, 1.0, 1.0]),
        ({"gamma": 0.5}, [-0.25, 0.1, 0.4], [0.25, 0.5, 1.0]),  # Â = (0.25, 0.5, 1) − V
    ],
)
def test_one_completion_by_hand(settings, advantages, returns):
    found = GAE(**settings).of_values(ONE, VALUES, THREE)
    assert found[0].tolist() == pytest.approx(advantages)
    assert found[1].tolist() == pytest.approx(returns)


def loop(rewards, values, lengths, gamma, gae_lambda):
    """δ_t = r_t + γ·V_{t+1} − V_t, Â_t = δ_t + γλ·Â_{t+1}, one token after another from the last."""
    advantages, start = [], 0
    for reward, length in zip(rewards, lengths, strict=True):
        part, later = [], 0.0
        for t in reversed(range(start, start + length)):
            is_last = t == start + length - 1
            delta = (reward if is_last else 0.0) + gamma * (0.0 if is_last else values[t + 1]) - values[t]
            later = delta + gamma * gae_lambda * later
            part.append(later)
        advantages += reversed(part)
        start += length
    return advantages


completions = st.lists(st.tuples(st.integers(1, 9), st.floats(-1, 1)), min_size=0, max_size=6)


@given(completions, st.floats(0.1, 1), st.floats(0, 1), st.integers(0, 1000))
def test_packed_completions_of_any_lengths_are_the_loop(completions, gamma, gae_lambda, seed):
    lengths, rewards = [length for length, _ in completions], [reward for _, reward in completions]
    values = torch.randn(sum(lengths), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    gae = GAE(gamma=gamma, gae_lambda=gae_lambda)
    advantages, returns = gae.of_values(
        torch.tensor(rewards, dtype=torch.float64), values, torch.tensor(lengths, dtype=torch.long)
    )
    expected = loop(rewards, values.tolist(), lengths, gamma, gae_lambda)
    assert advantages.tolist() == pytest.approx(expected, abs=1e-12)
    assert torch.equal(returns, advantages + values)


def test_with_a_lambda_of_one_the_advantage_is_what_the_value_misses_of_the_reward():
    values, lengths, rewards = torch.rand(12).double(), torch.tensor([5, 1, 6]), torch.tensor([1.0, 0.0, 0.7])
    advantages, _ = GAE().of_values(rewards, values, lengths)
    assert torch.allclose(advantages, rewards.repeat_interleave(lengths).double() - values, atol=1e-12)


def test_without_values_every_token_has_the_reward_to_the_bit():
    rewards, lengths = torch.tensor([0.1, 0.0, 1.0]), torch.tensor([4, 2, 3])
    advantages, returns = GAE().of_values(rewards, torch.zeros(9).double(), lengths)
    assert torch.equal(advantages.float(), rewards.repeat_interleave(lengths))
    assert torch.equal(returns, advantages)


def test_a_value_of_the_groups_mean_is_dr_grpo():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0]])
    lengths = torch.tensor([3, 1, 2, 4, 2, 2, 1, 5])
    means = rewards.mean(dim=1).repeat_interleave(4).repeat_interleave(lengths).double()
    inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths.view(2, 4))
    expected = GroupNormalized(normalize_std=False)(inputs).values.flatten().repeat_interleave(lengths)
    assert torch.allclose(GAE().of_values(rewards.flatten(), means, lengths)[0].float(), expected)


def test_whitening_by_hand():
    # Mean 0.12; Σ (x − 0.12)² = 0.38² + 0.48² + 0.28² + 0.62² + 0.52² = 1.108, over 4: 0.277, √ = 0.52631.
    advantages = torch.tensor([0.5, 0.6, 0.4, -0.5, -0.4], dtype=torch.float64)
    found = GAE().whitened(advantages, mean=0.12, variance=0.277)
    assert found.tolist() == pytest.approx([0.7220, 0.9120, 0.5320, -1.1780, -0.9880], abs=1e-4)
    scaled = GAE(whiten="scale").whitened(advantages, mean=0.12, variance=0.277)
    assert scaled.tolist() == pytest.approx((advantages / math.sqrt(0.277)).tolist())
    assert torch.equal(GAE(whiten="none").whitened(advantages, mean=0.12, variance=0.277), advantages)


def test_as_an_estimator_it_gives_the_reward_and_drops_nothing():
    rewards = torch.tensor([[1.0, 0.0]])
    assert isinstance(GAE(), AdvantageEstimator)
    check_group_size(GAE(), 1)
    inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=torch.tensor([[2, 3]]))
    assert torch.equal(GAE()(inputs).values, rewards)
    assert GAE()(inputs).keep.all()


def test_it_is_found_inside_what_wraps_it():
    gae = GAE(gae_lambda=0.9)
    assert gae_of(Truncated(gae)) is gae
    assert gae_of(Truncated(GroupNormalized())) is None

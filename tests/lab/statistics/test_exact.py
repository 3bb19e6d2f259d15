import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.statistics.exact import AnswerScores, exact_metrics, exact_pass_at_k, means_by_kind, strategy_entropy
from apo_lightning.errors import ConfigError


def scores():
    """Problem 0: strategies 0 (.5, valid) and 1 (.25, valid, and .125 not); problem 1: strategy 1 (.0625, valid)."""
    return AnswerScores(
        problem=torch.tensor([0, 0, 0, 1]),
        strategy=torch.tensor([0, 1, 1, 1]),
        is_valid=torch.tensor([True, True, False, True]),
        logprobs=torch.tensor([0.5, 0.25, 0.125, 0.0625], dtype=torch.float64).log(),
        num_problems=2,
        num_strategies=2,
    )


def test_the_masses_of_a_hand_made_list():
    torch.testing.assert_close(scores().success, torch.tensor([0.75, 0.0625], dtype=torch.float64))
    torch.testing.assert_close(scores().listed, torch.tensor([0.875, 0.0625], dtype=torch.float64))
    expected = torch.tensor([[0.5, 0.25], [0.0, 0.0625]], dtype=torch.float64)
    torch.testing.assert_close(scores().valid_mass, expected)
    assert scores().has_valid.tolist() == [[True, True], [False, True]]


def test_the_metrics_of_a_hand_made_list():
    metrics = exact_metrics(scores(), ks=(1, 2))
    assert metrics["pass@1"] == pytest.approx((0.75 + 0.0625) / 2)
    assert metrics["pass@2"] == pytest.approx((1 - 0.25**2 + 1 - 0.9375**2) / 2)
    # Of problem 0: (2/3, 1/3); problem 1 has one way.
    two_thirds = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3))
    assert metrics["valid_entropy"] == pytest.approx(two_thirds / 2)
    assert metrics["alive"] == 1.0
    # Below one in ten thousand a branch is dead.
    dying = replace(scores(), logprobs=torch.tensor([0.5, 0.99e-4, 0.125, 1.01e-4], dtype=torch.float64).log())
    assert exact_metrics(dying, ks=(1,))["alive"] == pytest.approx(2 / 3)


@given(st.floats(0, 1), st.integers(1, 300))
def test_pass_at_k_is_one_minus_all_failing(success, k):
    found = exact_pass_at_k(torch.tensor([success], dtype=torch.float64), k).item()
    assert found == pytest.approx(1 - (1 - success) ** k, abs=1e-12)


def test_pass_at_k_does_not_forget_tiny_probabilities_and_a_k_below_one_is_refused():
    assert exact_pass_at_k(torch.tensor([1e-20], dtype=torch.float64), 100).item() == pytest.approx(1e-18, rel=1e-12)
    with pytest.raises(ConfigError, match="pass@0"):
        exact_pass_at_k(torch.tensor([0.5]), 0)


def test_a_problem_without_mass_has_no_strategy_entropy():
    entropy = strategy_entropy(torch.tensor([[0.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
    assert entropy[0].isnan()
    assert entropy[1].item() == pytest.approx(math.log(2))


def test_means_by_kind_weigh_tokens():
    means = means_by_kind(
        ["digit", "end", "digit"],
        {"entropy": torch.tensor([1.0, 5.0, 4.0])},
        torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64),
    )
    assert means == {"entropy/digit": pytest.approx(3.25), "entropy/end": pytest.approx(5.0)}

"""Accuracies by enumeration of what they are probabilities of."""

from fractions import Fraction
from itertools import combinations, product

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lightning.errors import ConfigError
from apo_lightning.metrics.functional import majority_at_n, pass_at_k, pass_at_k_curve

MOST_SAMPLES = 12


def estimate(n, c, k):
    return pass_at_k(torch.tensor([n]), torch.tensor([c]), k).item()


def share_of_subsets_with_a_correct_sample(n, k):
    """For every c at once: samples 0 … c − 1 are correct, so a subset succeeds when its least member is below c."""
    least = [min(subset) for subset in combinations(range(n), k)]
    return [Fraction(sum(member < c for member in least), len(least)) for c in range(n + 1)]


@pytest.mark.parametrize("n", range(1, MOST_SAMPLES + 1))
def test_pass_at_k_counts_the_subsets_that_hold_a_correct_sample(n):
    expected = [share_of_subsets_with_a_correct_sample(n, k) for k in range(1, n + 1)]
    correct = torch.arange(n + 1)
    curve = pass_at_k_curve(torch.full_like(correct, n), correct, range(1, n + 1))
    for c, k in product(range(n + 1), range(1, n + 1)):
        assert curve[c, k - 1].item() == pytest.approx(float(expected[k - 1][c]), abs=1e-14)
        assert estimate(n, c, k) == pytest.approx(float(expected[k - 1][c]), abs=1e-14)


@given(st.integers(2, 300), st.data())
def test_pass_at_k_lies_between_accuracy_and_one_and_grows_with_k(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n - 1))
    assert estimate(n, c, 1) == pytest.approx(c / n)
    assert 0 <= estimate(n, c, k) <= estimate(n, c, k + 1) <= 1
    assert estimate(n, c, n) == float(c > 0)


def test_a_long_curve_keeps_its_precision():
    """C(1000, k)/C(1024, k) for c = 24, with whole numbers."""
    misses, exact = Fraction(1), []
    for drawn in range(1024):
        misses *= Fraction(1000 - drawn, 1024 - drawn) if drawn < 1000 else 0
        exact.append(float(1 - misses))
    curve = pass_at_k_curve(torch.tensor([1024]), torch.tensor([24]), range(1, 1025))
    torch.testing.assert_close(curve[0], torch.tensor(exact, dtype=torch.float64), rtol=0, atol=1e-14)


def test_a_curve_takes_problems_with_unequal_samples_and_ks_in_any_order():
    curve = pass_at_k_curve(torch.tensor([4, 8]), torch.tensor([1, 8]), [3, 1])
    torch.testing.assert_close(curve, torch.tensor([[0.75, 0.25], [1, 1]], dtype=torch.float64))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ConfigError, match="pass@"):
        estimate(n, c, k)
    with pytest.raises(ConfigError, match="pass@"):
        pass_at_k_curve(torch.tensor([n]), torch.tensor([c]), [1, k])
    with pytest.raises(ConfigError, match="no k"):
        pass_at_k_curve(torch.tensor([n]), torch.tensor([c]), [])


def expected_winner(answers, is_correct):
    """maj@n from its definition: votes by answer, and the winners' mean."""
    verdicts = {}
    for answer, verdict in zip(answers, is_correct, strict=True):
        if answer >= 0:
            verdicts.setdefault(answer, []).append(verdict)
    most = max(map(len, verdicts.values()), default=0)
    winners = [Fraction(sum(votes), len(votes)) for votes in verdicts.values() if len(votes) == most]
    return sum(winners, Fraction(0)) / max(1, len(winners))


@given(st.lists(st.integers(-1, 4), min_size=1, max_size=9), st.sets(st.integers(0, 4)))
def test_the_majority_is_the_expected_verdict_on_the_winner(answers, correct_answers):
    is_correct = [answer in correct_answers for answer in answers]
    value = majority_at_n(torch.tensor([answers]), torch.tensor([is_correct])).item()
    assert value == pytest.approx(float(expected_winner(answers, is_correct)))


@pytest.mark.parametrize(
    ("answers", "is_correct", "expected"),
    [
        ([0, 0, 1], [1, 1, 0], 1.0),
        ([0, 1, 1], [1, 0, 0], 0.0),
        ([0, 1, 2], [1, 0, 0], 1 / 3),
        # Three without an answer do not outvote one with.
        ([-1, -1, -1, 5], [0, 0, 0, 1], 1.0),
        ([-1, -1], [0, 0], 0.0),
        # A verifier that calls two equal answers right and one wrong.
        ([7, 7, 7, 2], [1, 1, 0, 0], 2 / 3),
    ],
)
def test_the_majority_of_a_few_samples(answers, is_correct, expected):
    value = majority_at_n(torch.tensor([answers]), torch.tensor([is_correct], dtype=torch.bool))
    assert value.dtype == torch.float64
    assert value.item() == pytest.approx(expected)

"""pass@k by enumeration, intervals by what they promise."""

from itertools import combinations

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from apo_lightning.errors import ConfigError
from apo_lightning.metrics import functional
from apo_lightning.metrics.functional import bootstrap_interval, paired_interval, pass_at_k


def estimate(n, c, k):
    return pass_at_k(torch.tensor([n]), torch.tensor([c]), k).item()


@given(st.integers(1, 8), st.data())
def test_pass_at_k_counts_the_subsets_that_hold_a_correct_sample(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    subsets = list(combinations(range(n), k))
    hits = sum(any(sample < c for sample in subset) for subset in subsets)
    assert estimate(n, c, k) == pytest.approx(hits / len(subsets), abs=1e-12)


@given(st.integers(2, 300), st.data())
def test_pass_at_k_lies_between_accuracy_and_one_and_grows_with_k(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n - 1))
    assert estimate(n, c, 1) == pytest.approx(c / n)
    assert 0 <= estimate(n, c, k) <= estimate(n, c, k + 1) <= 1
    assert estimate(n, c, n) == float(c > 0)


def test_pass_at_k_keeps_the_shape_and_is_float64():
    values = pass_at_k(torch.full((2, 3), 4), torch.tensor([[0, 1, 2], [3, 4, 0]]), 2)
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, torch.tensor([[0, 3 / 6, 5 / 6], [1, 1, 0]], dtype=torch.float64))


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 2), (4, -1, 2)])
def test_impossible_counts_are_refused(n, c, k):
    with pytest.raises(ConfigError, match="pass@"):
        estimate(n, c, k)


def test_the_bootstrap_is_as_wide_as_the_normal_approximation():
    """100 problems, half solved: standard error 0.05, so ±0.098 at 95 %."""
    values = torch.tensor([0.0, 1.0]).repeat(50)
    interval = bootstrap_interval(values)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.402, abs=0.012)
    assert interval.high == pytest.approx(0.598, abs=0.012)
    assert not interval.exact
    narrower = bootstrap_interval(values, confidence=0.5)
    assert interval.low < narrower.low < narrower.high < interval.high


def test_the_bootstrap_has_a_generator_of_its_own(monkeypatch):
    values = torch.rand(30, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = bootstrap_interval(values, seed=3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert bootstrap_interval(values, seed=3) == first
    assert bootstrap_interval(values, seed=4) != first
    monkeypatch.setattr(functional, "RESAMPLED_VALUES_AT_ONCE", 1000)
    assert bootstrap_interval(values, seed=3).low == pytest.approx(first.low, abs=0.01)


def test_problems_that_all_agree_get_an_exact_bound_and_a_mark():
    """1 − 0.05^(1/20) = 0.139: that many problems could differ and these 20 still agree, one time in twenty."""
    solved = bootstrap_interval(torch.ones(20))
    assert (solved.mean, solved.high, solved.exact) == (1.0, 1.0, True)
    assert solved.low == pytest.approx(1 - 0.1391, abs=1e-4)
    unchanged = paired_interval(torch.full((20,), 0.3), torch.full((20,), 0.3))
    assert unchanged.exact
    assert (unchanged.low, unchanged.high) == pytest.approx((-0.1391, 0.1391), abs=1e-4)


def test_pairing_cancels_the_difficulty_of_the_problems():
    before = torch.linspace(0.0, 0.8, 50)
    noise = 0.02 * torch.randn(50, generator=torch.Generator().manual_seed(0))
    interval = paired_interval(before, before + 0.1 + noise)
    assert interval.mean == pytest.approx(0.1, abs=0.01)
    assert interval.low > 0.08
    assert interval.high < 0.12
    reverse = paired_interval(before + 0.1 + noise, before)
    assert reverse.mean == pytest.approx(-interval.mean)


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match="3 problems before and 2 after"):
        paired_interval(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ConfigError, match="0 problems"):
        bootstrap_interval(torch.zeros(0))
    with pytest.raises(ConfigError, match=r"confidence is 95\.0"):
        bootstrap_interval(torch.zeros(3), confidence=95.0)

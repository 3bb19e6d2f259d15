"""Intervals by what they promise: how often they hold the truth, and what no set of problems may do to them."""

import math
import runpy
from pathlib import Path

import hypothesis.strategies as st
import mpmath
import pytest
import torch
from hypothesis import given, settings

from apo_lightning.errors import ConfigError
from apo_lightning.metrics import intervals
from apo_lightning.metrics.intervals import Interval, mean_intervals, paired_interval

BENCHMARK = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "accuracy" / "intervals.py"))
NUM_SETS = 300
MONTE_CARLO_ERROR = 4 * math.sqrt(0.025 * 0.975 / intervals.NUM_RESAMPLES)

SCORES = st.lists(st.sampled_from([0.0, 0.001, 0.3, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=40)


def mean_interval(values, **bounds) -> Interval:
    (interval,) = mean_intervals(values[:, None], **bounds)
    return interval


@pytest.mark.parametrize(("num_problems", "mean"), [(30, 0.5), (272, 0.1), (272, 0.9), (500, 0.5)])
def test_ninety_five_per_cent_of_the_intervals_hold_the_truth(num_problems, mean):
    _, ours = BENCHMARK["means"](num_problems, 16, 1, mean, NUM_SETS)
    assert 0.92 <= ours.coverage <= 0.985


def test_a_saturated_benchmark_keeps_its_coverage_where_the_percentile_bootstrap_loses_it():
    percentile, ours = BENCHMARK["means"](40, 256, 16, 0.98, NUM_SETS)
    assert percentile.coverage < 0.85
    assert ours.coverage >= 0.95


def test_few_problems_do_not_get_too_short_intervals():
    percentile, ours = BENCHMARK["means"](30, 16, 1, 0.1, NUM_SETS)
    assert percentile.coverage < 0.92
    assert ours.coverage >= 0.94
    assert ours.width < 1.25 * percentile.width


@pytest.mark.parametrize("num_problems", [40, 272])
def test_paired_intervals_hold_the_true_difference(num_problems):
    _, ours = BENCHMARK["differences"](num_problems, 16, 1, 0.3, NUM_SETS)
    assert 0.92 <= ours.coverage <= 0.99


@pytest.mark.parametrize(("solved", "problems"), [(0, 40), (1, 30), (10, 10), (150, 272), (1, 1)])
def test_of_right_and_wrong_the_ends_are_quantiles_of_beta_distributions(solved, problems):
    """With c of P problems solved: Beta(c, P − c + 1/2) at the low end, Beta(c + 1/2, P − c) at the high one."""
    interval = mean_interval((torch.arange(problems) < solved).double())
    if solved == 0:
        assert interval.low == 0.0
    else:
        below = mpmath.betainc(solved, problems - solved + 0.5, 0, interval.low, regularized=True)
        assert float(below) == pytest.approx(0.025, abs=MONTE_CARLO_ERROR)
    if solved == problems:
        assert interval.high == 1.0
    else:
        above = mpmath.betainc(solved + 0.5, problems - solved, interval.high, 1, regularized=True)
        assert float(above) == pytest.approx(0.025, abs=MONTE_CARLO_ERROR)


@settings(max_examples=50)
@given(SCORES)
def test_no_set_of_problems_gets_an_interval_without_width_or_beyond_the_range(values):
    interval = mean_interval(torch.tensor(values, dtype=torch.float64))
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.high - interval.low > 0.3 / (len(values) + 1)
    assert interval.mean == pytest.approx(math.fsum(values) / len(values))


@settings(max_examples=50)
@given(SCORES, st.randoms(use_true_random=False))
def test_a_difference_turns_its_sign_with_the_policies(before, random):
    after = random.sample(before, len(before))
    first, second = (torch.tensor(values, dtype=torch.float64) for values in (before, after))
    there, back = paired_interval(first, second), paired_interval(second, first)
    assert -1 <= there.low <= there.mean <= there.high <= 1
    assert there.high > there.low
    assert there.mean == pytest.approx(-back.mean, abs=1e-12)
    assert there.low == pytest.approx(-back.high, abs=0.05 * (there.high - there.low))


def test_an_unbounded_score_gets_students_interval():
    """200 normal numbers: the mean ± 1.97 standard errors, and a little for the half problem."""
    values = 5 + torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (interval,) = mean_intervals(values, lowest=-math.inf, highest=math.inf)
    half_width = 1.972 * values.std().item() / math.sqrt(200)
    assert half_width < (interval.high - interval.low) / 2 < 1.15 * half_width


def test_what_one_problem_says_of_an_unbounded_score_is_nothing():
    interval = mean_interval(torch.tensor([0.4]), lowest=0.0, highest=math.inf)
    assert 0 < interval.low < 0.05
    assert interval.high == math.inf


def test_pairing_cancels_the_difficulty_of_the_problems():
    before = torch.linspace(0.0, 0.8, 50)
    noise = 0.02 * torch.randn(50, generator=torch.Generator().manual_seed(0))
    interval = paired_interval(before, before + 0.1 + noise)
    assert interval.mean == pytest.approx(0.1, abs=0.01)
    assert 0.08 < interval.low < interval.high < 0.12


def test_two_policies_that_never_differ_could_still():
    unchanged = paired_interval(torch.full((20,), 0.3), torch.full((20,), 0.3))
    assert unchanged.mean == 0.0
    assert -0.2 < unchanged.low < -0.05
    assert 0.05 < unchanged.high < 0.2


def test_a_column_has_the_interval_it_would_have_alone():
    values = torch.rand(30, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values[:, 1] = 0.7
    together = mean_intervals(values)
    for column, interval in zip(values.T, together, strict=True):
        alone = mean_interval(column)
        assert (alone.mean, alone.low, alone.high) == pytest.approx((interval.mean, interval.low, interval.high))


def test_neither_the_order_of_the_problems_nor_the_global_generator_matters(monkeypatch):
    values = torch.rand(30, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = mean_interval(values)
    assert torch.equal(torch.get_rng_state(), state)
    assert mean_interval(values.flip(0)).low == first.low
    monkeypatch.setattr(intervals, "WEIGHTS_AT_ONCE", 1000)
    assert mean_interval(values).low == pytest.approx(first.low, abs=0.01)


def test_what_cannot_be_resampled_is_refused():
    with pytest.raises(ConfigError, match="3 problems before and 2 after"):
        paired_interval(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ConfigError, match="0 problems"):
        mean_interval(torch.zeros(0))
    with pytest.raises(ConfigError, match=r"score 1\.5: .* \[0\.0, 1\.0\]"):
        mean_interval(torch.tensor([0.5, 1.5]))
    with pytest.raises(ConfigError, match="score nan"):
        mean_interval(torch.tensor([math.nan]))

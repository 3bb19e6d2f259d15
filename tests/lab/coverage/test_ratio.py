"""A share of tokens, resampled by problem."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apo_lab.coverage.ratio import ratio_estimate
from apo_lightning.metrics.intervals import mean_intervals

problems = st.lists(st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1)


@settings(max_examples=40)
@given(problems)
def test_every_token_weighs_the_same_and_the_interval_is_wide_and_possible(counts):
    hits, tokens = zip(*counts, strict=True)
    found = ratio_estimate(torch.tensor(hits), torch.tensor(tokens))
    assert found.value == pytest.approx(float(Fraction(sum(hits), sum(tokens))), abs=1e-12)
    assert 0 <= found.low < found.high <= 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.6])
def test_problems_of_one_length_have_the_interval_of_a_mean(share):
    # With equal denominators the ratio is the mean of the shares, and so is every resample of it.
    shares = torch.full((60,), share).double()
    shares[:20] = 0.4
    found = ratio_estimate(shares * 10, torch.full((60,), 10))
    (mean,) = mean_intervals(shares[:, None], lowest=-math.inf, highest=math.inf)
    assert found.value == pytest.approx(mean.mean)
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high), abs=0.005)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_problems_that_all_agree_do_not_make_a_certainty(share):
    # Then an unseen problem may have any share, as for a mean in [0, 1].
    tokens = torch.arange(10, 50)
    found, mean = ratio_estimate(share * tokens.double(), tokens), mean_intervals(torch.full((40, 1), share))[0]
    assert (found.low, found.high) == pytest.approx((mean.low, mean.high), abs=0.02)
    assert found.low < found.high


def test_the_interval_agrees_with_the_delta_method_on_many_problems():
    # Var(r) ≈ Σ (x_i − r·n_i)² / (Σ n_i)²; the interval is then r ± 1.96 standard errors, and a little for the unseen.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, 400, (4000,), generator=generator)
    share = 0.6 + 0.3 * torch.rand(4000, generator=generator)
    hits = (share * tokens).long()
    found = ratio_estimate(hits, tokens)
    ratio = hits.sum() / tokens.sum()
    error = 1.96 * ((hits - ratio * tokens).double().square().sum().sqrt() / tokens.sum()).item()
    assert found.value - found.low == pytest.approx(error, rel=0.1)
    assert found.high - found.value == pytest.approx(error, rel=0.1)


def test_the_global_generator_is_left_alone_and_the_answer_repeats():
    hits, tokens = torch.arange(30), torch.full((30,), 30)
    before = torch.get_rng_state()
    assert ratio_estimate(hits, tokens) == ratio_estimate(hits, tokens)
    assert torch.equal(torch.get_rng_state(), before)

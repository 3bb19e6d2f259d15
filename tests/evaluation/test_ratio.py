"""A share of tokens, resampled by problem."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.evaluation.ratio import ratio_estimate

problems = st.lists(st.integers(1, 50).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), min_size=1)


@given(problems)
def test_every_token_weighs_the_same_and_the_interval_stays_among_the_possible(counts):
    hits, tokens = zip(*counts, strict=True)
    found = ratio_estimate(torch.tensor(hits), torch.tensor(tokens), num_resamples=50)
    assert found.value == pytest.approx(float(Fraction(sum(hits), sum(tokens))), abs=1e-12)
    assert 0 <= found.low <= found.high <= 1


def test_the_interval_is_that_of_all_resamples_of_two_problems():
    # Four equally likely resamples: (a, a) 0.9, (a, b) and (b, a) 32/40 = 0.8, (b, b) 0.5. So the quantiles from 0
    # to 25 %, 25 to 75 % and 75 to 100 % are 0.5, 0.8 and 0.9.
    hits, tokens = torch.tensor([27, 5]), torch.tensor([30, 10])
    for confidence, low, high in ((0.95, 0.5, 0.9), (0.6, 0.5, 0.9), (0.4, 0.8, 0.8)):
        found = ratio_estimate(hits, tokens, confidence=confidence)
        assert (found.low, found.high) == pytest.approx((low, high))


def test_the_interval_agrees_with_the_delta_method_on_many_problems():
    # Var(r) ≈ Σ (x_i − r·n_i)² / (Σ n_i)²; the percentile interval is then r ± 1.96 standard errors.
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, 400, (400,), generator=generator)
    share = 0.6 + 0.3 * torch.rand(400, generator=generator)
    hits = (share * tokens).long()
    found = ratio_estimate(hits, tokens)
    ratio = hits.sum() / tokens.sum()
    error = 1.96 * ((hits - ratio * tokens).double().square().sum().sqrt() / tokens.sum()).item()
    assert found.value - found.low == pytest.approx(error, rel=0.05)
    assert found.high - found.value == pytest.approx(error, rel=0.05)


def test_problems_that_all_agree_do_not_make_a_certainty():
    # 1 − 0.05^(1/2) = 0.776: with two problems, that many others may be unlike them.
    found = ratio_estimate(torch.tensor([5, 10]), torch.tensor([10, 20]))
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5 * 0.2236, 1 - 0.5 * 0.2236), abs=1e-4)


def test_the_global_generator_is_left_alone_and_the_seed_decides():
    hits, tokens = torch.arange(30), torch.full((30,), 30)
    before = torch.get_rng_state()
    assert ratio_estimate(hits, tokens, seed=3) == ratio_estimate(hits, tokens, seed=3)
    assert ratio_estimate(hits, tokens, seed=3) != ratio_estimate(hits, tokens, seed=4)
    assert torch.equal(torch.get_rng_state(), before)


def test_many_problems_are_resampled_in_parts(monkeypatch):
    monkeypatch.setattr("apo_lightning.evaluation.ratio.RESAMPLED_PROBLEMS_AT_ONCE", 7)
    parts = ratio_estimate(torch.tensor([27, 5]), torch.tensor([30, 10]), num_resamples=500)
    assert (parts.low, parts.high) == pytest.approx((0.5, 0.9))

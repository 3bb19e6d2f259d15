"""Means over all tokens from some completions: unbiased, with the error that they have. Every subset is enumerated."""

import itertools
import math

import pytest
import torch
from apo_lightning.metrics.all_token_means import FIT_FROM, AllTokenMeans, completion_totals

from factories import make_step

NUM_OTHERS = 6


def step_of(num_required: int) -> torch.Tensor:
    """Totals of completions of unequal length; entropy goes with the surprisal, but not exactly."""
    generator = torch.Generator().manual_seed(num_required)
    shape = (num_required + NUM_OTHERS,)
    tokens = torch.randint(1, 40, shape, generator=generator).double()
    surprisal = tokens * torch.empty(shape, dtype=torch.float64).exponential_(generator=generator)
    probability, noise, max_prob = (tokens * torch.rand(shape, generator=generator).double() for _ in range(3))
    entropy = 2 * tokens + 0.3 * surprisal - 1.5 * probability + 0.2 * noise
    return torch.stack([tokens, surprisal, probability, entropy, max_prob], dim=1)


def estimate(totals: torch.Tensor, num_required: int, drawn: tuple[int, ...]):
    required = torch.arange(len(totals)) < num_required
    is_drawn = torch.isin(torch.arange(len(totals)), torch.tensor(drawn))
    # Of the others nobody knows entropy and max-prob.
    seen = torch.where((required | is_drawn)[:, None] | (torch.arange(5) < 3), totals, math.nan)
    metric = AllTokenMeans()
    metric.update(seen, required, is_drawn)
    return metric.compute()


def truth(totals: torch.Tensor) -> torch.Tensor:
    return totals[:, 3:].sum(0) / totals[:, 0].sum()


@pytest.mark.parametrize("num_drawn", [1, 2, 3, 5])
@pytest.mark.parametrize("num_required", [0, FIT_FROM - 1, FIT_FROM, 20])
def test_the_mean_over_all_draws_is_the_mean_over_all_tokens_and_the_error_is_that_of_the_draw(num_required, num_drawn):
    totals = step_of(num_required)
    others = range(num_required, len(totals))
    found = [estimate(totals, num_required, drawn) for drawn in itertools.combinations(others, num_drawn)]
    means = torch.stack([one.means for one in found])
    torch.testing.assert_close(means.mean(0), truth(totals), rtol=1e-12, atol=0)
    # The variance of an estimate is estimated without bias too; from one completion there is none.
    variances = torch.stack([one.standard_errors for one in found]).square()
    if num_drawn == 1:
        assert variances.isnan().all()
    else:
        torch.testing.assert_close(variances.mean(0), means.var(0, unbiased=False), rtol=1e-9, atol=0)


@pytest.mark.parametrize("num_required", [0, 20])
def test_with_all_others_drawn_the_mean_is_exact(num_required):
    totals = step_of(num_required)
    found = estimate(totals, num_required, tuple(range(num_required, len(totals))))
    torch.testing.assert_close(found.means, truth(totals), rtol=1e-15, atol=0)
    assert found.standard_errors.tolist() == [0, 0]


def test_with_nothing_left_out_there_is_nothing_to_draw():
    totals = step_of(4)
    found = estimate(totals, len(totals), ())
    torch.testing.assert_close(found.means, truth(totals), rtol=1e-15, atol=0)
    assert found.standard_errors.tolist() == [0, 0]


def test_where_something_is_left_out_and_nothing_drawn_there_is_no_mean():
    found = estimate(step_of(4), 4, ())
    assert found.means.isnan().all()
    assert found.standard_errors.isnan().all()


def test_a_fit_on_what_is_known_makes_the_error_smaller():
    # The same six others: with eight required completions the linear part of the entropy is known, with seven not.
    totals = step_of(FIT_FROM)
    others = tuple(range(FIT_FROM, FIT_FROM + 3))
    fitted, unfitted = (
        estimate(totals, FIT_FROM, others),
        estimate(totals[1:], FIT_FROM - 1, tuple(b - 1 for b in others)),
    )
    assert fitted.standard_errors[0] < 0.3 * unfitted.standard_errors[0]


def test_completions_that_are_all_alike_can_be_fitted_too():
    totals = step_of(0)[:1].repeat(FIT_FROM + NUM_OTHERS, 1)
    found = estimate(totals, FIT_FROM, (FIT_FROM, FIT_FROM + 1))
    torch.testing.assert_close(found.means, truth(totals), rtol=1e-9, atol=0)
    assert found.standard_errors.max() < 1e-6


def test_a_value_that_is_no_number_is_counted_and_spoils_the_mean():
    totals = step_of(3)
    totals[0, 3] = math.nan
    found = estimate(totals, 3, (4, 5))
    assert (found.means.isnan().tolist(), int(found.num_nonfinite)) == ([True, False], 1)


def test_it_does_not_matter_by_which_rank_a_completion_was_scored():
    totals = step_of(10)
    required = torch.arange(16) < 10
    drawn = torch.isin(torch.arange(16), torch.tensor([11, 14]))
    whole, parts = AllTokenMeans(), AllTokenMeans()
    whole.update(totals, required, drawn)
    for rank in (0, 1):
        parts.update(totals[rank::2], required[rank::2], drawn[rank::2])
    for one, other in zip(whole.compute()[:2], parts.compute()[:2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=0)


def test_totals_are_sums_over_the_tokens_of_a_completion():
    step = make_step(lengths=[1, 2], entropy=[1.0, 2.0, 4.0], max_prob=[0.5, 0.25, 0.5])
    # Every sampled token has log-prob −0.5.
    p = math.exp(-0.5)
    expected = torch.tensor([[1, 0.5, p, 1, 0.5], [2, 1.0, 2 * p, 6, 0.75]], dtype=torch.float64)
    torch.testing.assert_close(completion_totals(step.tokens), expected, rtol=1e-7, atol=0)

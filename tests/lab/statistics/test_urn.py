"""Averages over all subsets of a small urn are the truth."""

import itertools
import math

import pytest
import torch

from apo_lab.statistics.urn import beta_binomial_pass_at_k, beta_binomial_shapes, expected_distinct, missing_mass
from apo_lightning.metrics.functional import pass_at_k

URN = "aaabbcd"


def counts(samples):
    return sorted((samples.count(answer) for answer in set(samples)), reverse=True)


@pytest.mark.parametrize(("n", "k"), [(7, 3), (5, 2), (4, 4), (3, 1)])
def test_distinct_answers_averaged_over_all_subsets_are_those_of_the_urn(n, k):
    """A visit is n of the urn's seven; what k fresh draws hold is known by enumeration."""
    truth = [len(set(drawn)) for drawn in itertools.combinations(URN, k)]
    estimates = [expected_distinct(counts(visit), k) for visit in itertools.combinations(URN, n)]
    assert math.fsum(estimates) / len(estimates) == pytest.approx(math.fsum(truth) / len(truth), abs=1e-12)


@pytest.mark.parametrize(("n", "k"), [(7, 3), (5, 2), (4, 4)])
def test_pooled_at_k_averaged_over_all_visits_is_the_chance_of_a_right_draw(n, k):
    right = "a"
    truth = [right in drawn for drawn in itertools.combinations(URN, k)]
    estimates = [
        float(pass_at_k(torch.tensor([n]), torch.tensor([visit.count(right)]), k))
        for visit in itertools.combinations(URN, n)
    ]
    assert math.fsum(estimates) / len(estimates) == pytest.approx(sum(truth) / len(truth), abs=1e-12)


def test_the_missing_mass_is_too_large_by_no_more_than_one_draw_explains():
    """All sequences of n draws with replacement from three answers."""
    probs, n = {"a": 0.6, "b": 0.3, "c": 0.1}, 4
    bias = 0.0
    for drawn in itertools.product(probs, repeat=n):
        weight = math.prod(probs[answer] for answer in drawn)
        unseen = math.fsum(p for answer, p in probs.items() if answer not in drawn)
        bias += weight * (missing_mass(counts(drawn)) - unseen)
    assert 0 <= bias <= 1 / n


def test_the_fit_finds_the_shapes_that_counts_were_drawn_from():
    a, b, n = 0.6, 1.8, 8
    log_beta = lambda x, y: math.lgamma(x) + math.lgamma(y) - math.lgamma(x + y)  # noqa: E731
    weights = [math.comb(n, c) * math.exp(log_beta(a + c, b + n - c) - log_beta(a, b)) for c in range(n + 1)]
    numbers = [round(20000 * weight) for weight in weights]
    correct = torch.arange(n + 1).repeat_interleave(torch.tensor(numbers))
    total = torch.full_like(correct, n)
    assert beta_binomial_shapes(total, correct) == pytest.approx((a, b), rel=2e-3)
    # At k = n the model's value is that of the counts: the share of problems with a right sample.
    assert beta_binomial_pass_at_k(total, correct, n) == pytest.approx(float((correct > 0).double().mean()), abs=1e-3)
    expected = 1 - math.exp(log_beta(a, b + 64) - log_beta(a, b))
    assert beta_binomial_pass_at_k(total, correct, 64) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize("correct", [[0, 0], [8, 8], []])
def test_counts_without_a_maximum_of_the_likelihood_give_no_number(correct):
    total = torch.full((len(correct),), 8)
    assert beta_binomial_shapes(total, torch.tensor(correct, dtype=torch.long)) is None
    assert math.isnan(beta_binomial_pass_at_k(total, torch.tensor(correct, dtype=torch.long), 64))


def test_with_every_count_alike_the_fit_ends_at_its_bound():
    total, correct = torch.full((50,), 8), torch.full((50,), 4)
    a, b = beta_binomial_shapes(total, correct)
    assert a == pytest.approx(b)
    assert a > 100
    assert beta_binomial_pass_at_k(total, correct, 8) == pytest.approx(1 - 0.5**8, abs=1e-2)

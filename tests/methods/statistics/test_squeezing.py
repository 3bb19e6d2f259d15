"""Shares of a lost mass: a policy gradient step on a bandit, whose new probabilities are known in closed form."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_methods.statistics.squeezing import leaders, mass_of_parts, squeeze_shares, squeeze_sums, total

NAMES = ("share_leader", "share_anchors", "share_tail", "index", "tail_loses")


def push(probs, sampled, rate):
    """One exact step of size `rate` along −∇ log π(sampled)."""
    pi = torch.tensor(probs, dtype=torch.float64)
    force = pi.clone()
    force[sampled] -= 1
    return pi, (pi.log() + rate * force).softmax(0)


def shares_of(before, after, sampled, anchors):
    """Of one token whose T_K is `anchors`."""
    ids = torch.tensor([anchors])
    there = ids != sampled
    leader = leaders(before.log()[ids], there)
    masses = [mass_of_parts(pi.log()[[sampled]], pi.log()[ids], there, leader) for pi in (before, after)]
    return squeeze_shares(squeeze_sums(*masses))


# Source of the indices: the specification's bandits, at a step of 0.5.
@pytest.mark.parametrize(
    ("probs", "sampled", "index", "tail"),
    [
        ((0.6, 0.3, 0.05, 0.05), 0, 0.138, None),
        ((0.90, 0.05, 0.04, 0.01), 1, 0.599, -0.55),
        ((0.25, 0.25, 0.25, 0.25), 2, 0.0, None),
    ],
)
def test_the_index_of_a_step_on_a_bandit(probs, sampled, index, tail):
    before, after = push(probs, sampled, rate=0.5)
    leader = max((v for v in range(4) if v != sampled), key=lambda v: probs[v])
    shares = shares_of(before, after, sampled, sorted({sampled, leader}))
    assert shares["index"] == pytest.approx(index, abs=2e-3)
    if tail is not None:
        assert shares["share_tail"] == pytest.approx(tail, abs=0.02)
        assert shares["tail_loses"] == 1


probabilities = st.lists(st.floats(0.01, 1.0), min_size=5, max_size=5).map(lambda v: [x / sum(v) for x in v])


@given(st.lists(st.tuples(probabilities, st.integers(0, 4), st.floats(0.01, 0.99)), min_size=1, max_size=4))
def test_mass_divided_in_proportion_has_an_index_of_zero_and_shares_sum_to_one(tokens):
    parts = []
    for probs, sampled, kept in tokens:
        before = torch.tensor(probs, dtype=torch.float64)
        after = before * (1 - kept * before[sampled]) / (1 - before[sampled])
        after[sampled] = kept * before[sampled]
        ids = torch.tensor([[0, 1, sampled]])
        there = torch.tensor([[sampled != 0, sampled != 1, False]])
        leader = leaders(before.log()[ids], there)
        parts.append(
            squeeze_sums(*(mass_of_parts(pi.log()[[sampled]], pi.log()[ids], there, leader) for pi in (before, after)))
        )
    shares = squeeze_shares(total(parts))
    assert shares["index"] == pytest.approx(0, abs=1e-11)
    assert sum(shares[name] for name in NAMES[:3]) == pytest.approx(1, abs=1e-11)


def test_sums_of_parts_are_those_of_the_whole_and_what_is_broken_is_counted():
    generator = torch.Generator().manual_seed(0)
    before, after = (torch.rand(7, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    before, after = (m / m.sum(1, keepdim=True) for m in (before, after))
    after[3, 2] = math.nan
    whole = squeeze_sums(before, after)
    parts = [squeeze_sums(before[rows], after[rows]) for rows in (slice(0, 2), slice(2, 2), slice(2, 7))]
    joined = total(parts)
    assert joined == pytest.approx(whole, abs=1e-12)
    assert (whole["num_fell"] + whole["num_rose"], whole["num_nonfinite"]) == (6, 1)


def test_no_token_that_fell_is_no_number():
    half = torch.tensor([[0.5, 0.5, 0.0, 0.0]], dtype=torch.float64)
    shares = squeeze_shares(squeeze_sums(half, half))
    assert list(shares) == list(NAMES)
    assert all(math.isnan(value) for value in shares.values())

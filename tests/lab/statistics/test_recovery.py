import math

import pytest
import torch

from apo_lab.statistics.recovery import (
    NEVER,
    BarrierEvents,
    rank_selectivity,
    ratio_interval,
    verdict_selectivity,
)


def test_below_one_draw_is_lost_once_two_draws_are_a_recovery_and_what_began_below_is_not_at_risk():
    """Draws at the looks: 3, .9, 1.5, 2.5, .5 is lost at 1 and recovered at 3; 3, .9, 1.9, … is never recovered."""
    looks = torch.tensor([[3.0, 3.0, 0.5, 1.0], [0.9, 0.9, 0.4, 1.0], [1.5, 1.9, 9.0, 1.0], [2.5, 1.9, 9.0, 0.1]]).log()
    events = BarrierEvents.before_training(looks[0])
    for step, draws in enumerate([*looks[1:], torch.tensor([0.5, 1.9, 0.1, 9.0]).log()], start=1):
        events = events.updated(draws, step)
    assert events.at_risk.tolist() == [True, True, False, True]
    assert events.lost_at.tolist() == [1, 1, NEVER, 3]
    assert events.recovered_at.tolist() == [3, NEVER, NEVER, 4]


def test_a_value_that_is_not_a_number_brings_no_event():
    events = BarrierEvents.before_training(torch.tensor([1.0])).updated(torch.tensor([math.nan]), 1)
    assert (events.lost_at.item(), events.recovered_at.item()) == (NEVER, NEVER)


def test_selectivity_by_verdict_is_the_mean_over_matched_pairs():
    """Right: 0 and 1, wrong: 2 and 3. Of log π_ref 0, −.4, −.3, −.6 all pairs but (0, 3) lie within .5 nats:
    (0, 2): .5 − .1 = .4;  (1, 2): .2 − .1 = .1;  (1, 3): .2 − (−.2) = .4.
    """
    change = torch.tensor([[0.5, 0.2, 0.1, -0.2], [1.0, 2.0, 3.0, 4.0]], dtype=torch.float64)
    ref = torch.tensor([[0.0, -0.4, -0.3, -0.6]] * 2, dtype=torch.float64)
    success = torch.tensor([[0.25, 1.0, 0.0, 0.0], [0.0, 0.0, math.nan, 0.0]], dtype=torch.float64)
    found = verdict_selectivity(change, ref, success)
    assert found[0].item() == pytest.approx(0.3)
    assert found[1].isnan()


def test_a_change_that_is_infinite_is_in_no_pair_and_in_no_half():
    change = torch.tensor([[0.5, -math.inf, 0.1, 0.2]])
    assert rank_selectivity(change, 2).item() == pytest.approx(0.5 - 0.15)
    assert verdict_selectivity(change, torch.zeros(1, 4), torch.tensor([[1.0, 1.0, 0.0, 0.0]])).item() == pytest.approx(
        0.35
    )


def test_flattening_changes_no_selectivity_of_alternatives_that_the_reference_finds_equal():
    """Logits scaled by τ: Δx_i − Δx_j = (1/τ − 1)·(x_i − x_j), which is 0 where x_i = x_j."""
    logits = torch.tensor([[1.0, 1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
    change = ((logits / 2).log_softmax(1) - logits.log_softmax(1))[:, :4]
    assert rank_selectivity(change, 2).item() == pytest.approx(0, abs=1e-12)
    success = torch.tensor([[1.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    assert verdict_selectivity(change, torch.zeros(1, 4).double(), success).item() == pytest.approx(0, abs=1e-12)


def test_the_interval_is_over_prompts_not_over_alternatives():
    """Ten prompts of which each is wholly lost or wholly not: as wide as ten coins, however many alternatives."""
    lost = torch.tensor([1.0, 0.0] * 5)
    few, many = (ratio_interval(lost * n, torch.full((10,), float(n)), bounds=(0.0, 1.0)) for n in (1, 100))
    assert (many.low, many.high) == pytest.approx((few.low, few.high))
    assert few.mean == 0.5
    assert 0.5 < few.high - few.low < 0.75


def test_an_interval_covers_the_share_of_all_prompts():
    """Clustered: a prompt's share is beta(1, 1), its eight alternatives binomial. 200 studies of 40 prompts."""
    generator = torch.Generator().manual_seed(3)
    covered = 0
    for _ in range(200):
        shares = torch.rand(40, generator=generator)
        lost = torch.bernoulli(shares[:, None].expand(40, 8), generator=generator).sum(1)
        interval = ratio_interval(lost, torch.full((40,), 8.0), bounds=(0.0, 1.0))
        covered += interval.low <= 0.5 <= interval.high
    assert 0.91 <= covered / 200 <= 0.99


def test_of_no_prompt_nothing_is_known():
    interval = ratio_interval(torch.zeros(0), torch.zeros(0))
    assert math.isnan(interval.mean)
    assert math.isnan(interval.low)

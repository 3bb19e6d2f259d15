"""Problems are matched by name; lost and gained are what only one method solves; seeds have a variance."""

import math

import pytest

from apo_lab.statistics.comparison import compare_methods
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import ProblemCount


def counts(num_samples=4, **correct):
    return [
        ProblemCount(prompt_id=name, num_samples=num_samples, num_correct=number) for name, number in correct.items()
    ]


A = counts(easy=4, hard=1, new=0, never=0)
B = counts(never=0, new=2, hard=0, easy=4)


def test_the_comparison_follows_the_problem_and_not_its_place():
    result = compare_methods([A], [B], k=1)
    assert (result.num_problems, result.k) == (4, 1)
    # By place every problem would have changed; by name two have, by −1/4 and 1/2.
    assert result.difference.mean == pytest.approx(1 / 16)
    assert -1 <= result.difference.low < 1 / 16 < result.difference.high <= 1
    # hard: 1/4 of one sample before, 0 after; easy is solved by both in every sample; new: 0 before, 2/4 after.
    assert (result.num_lost, result.num_gained) == pytest.approx((1 / 4, 2 / 4))


def test_the_way_back_loses_what_was_gained():
    there, back = compare_methods([A], [B], k=2), compare_methods([B], [A], k=2)
    assert (back.num_lost, back.num_gained) == pytest.approx((there.num_gained, there.num_lost))
    mirrored = (-back.difference.high, -back.difference.low)
    assert mirrored == pytest.approx((there.difference.low, there.difference.high), abs=0.03)


def test_the_order_of_the_problems_does_not_matter():
    assert compare_methods([A[::-1]], [B], k=1).difference == compare_methods([A], [B[::-1]], k=1).difference


def test_k_is_that_of_pass_at_k():
    # pass@4 of 4 samples: solved at least once.
    result = compare_methods([A], [B], k=4)
    assert (result.difference.mean, result.num_lost, result.num_gained) == (0, 1, 1)
    with pytest.raises(ConfigError, match="pass@5 of 4 samples"):
        compare_methods([A], [B], k=5)


def test_policies_may_have_drawn_different_numbers_of_samples():
    result = compare_methods([A], [counts(num_samples=8, easy=8, hard=2, new=0, never=0)], k=1)
    assert result.difference.mean == pytest.approx(0.0)


def test_no_problems_are_refused():
    with pytest.raises(ConfigError, match="0 problems"):
        compare_methods([[]], [[]], k=1)


def test_what_seeds_differ_by_is_in_the_interval_and_more_seeds_do_not_lose_fewer_problems():
    """B solves every problem in 1 or in 3 of 4 samples, by seed; the same problems, so their spread is 0."""
    low, high = (counts(**{f"p{i}": c for i in range(10)}) for c in (1, 3))
    none = counts(**{f"p{i}": 0 for i in range(10)})
    one, two = compare_methods([none], [low], k=1), compare_methods([none], [low, high], k=1)
    assert (two.num_seeds_a, two.num_seeds_b) == (1, 2)
    assert two.difference.mean == pytest.approx(0.5)
    # V_B = var(0.25, 0.75)/2 = 0.0625 with one degree of freedom: 0.5 ± 12.7·0.25 is all of [−1, 1].
    assert (two.difference.low, two.difference.high) == (-1.0, 1.0)
    assert one.difference.low > -0.2
    # 10 problems in 1/4 or 3/4 of the samples.
    assert (one.num_gained, two.num_gained) == pytest.approx((2.5, 5.0))
    assert compare_methods([none, none], [low], k=1).num_gained == pytest.approx(2.5)


def test_methods_that_agree_everywhere_get_no_interval():
    same = compare_methods([A, A], [A, A], k=1).difference
    assert same.mean == 0
    assert math.isnan(same.low)
    assert math.isnan(same.high)

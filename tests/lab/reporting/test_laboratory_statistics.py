import math
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from apo_lab.reporting.laboratory.baselines import mixed_pass_at_k
from apo_lab.reporting.laboratory.reading import LabRun
from apo_lab.reporting.laboratory.statistics import at_matched, frontier, frontier_at, welch
from apo_lab.statistics.exact import AnswerScores


def answers_of(places):
    """One valid answer for each of these problems, all of one strategy."""
    ids = torch.tensor(places, dtype=torch.long)
    return AnswerScores(
        problem=ids,
        strategy=torch.zeros_like(ids),
        is_valid=torch.ones_like(ids, dtype=torch.bool),
        logprobs=torch.zeros(len(ids), dtype=torch.float64),
        num_problems=len(ids),
        num_strategies=1,
    )


def run_with(points):
    measured = tuple({"step": i, "pass@1": one, "pass@64": many} for i, (one, many) in enumerate(points))
    return LabRun("locks", "grpo", 1, Path(), (), answers_of([]), measured)


def test_welch_is_scipys():
    before, after = [0.1, 0.4, 0.35, 0.2], [0.5, 0.7, 0.45]
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval(0.95)
    found = welch(before, after)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_one_seed_or_no_spread_has_no_interval():
    assert math.isnan(welch([0.1], [0.2, 0.3]).low)
    assert math.isnan(welch([0.1, 0.1], [0.2, 0.2]).low)


def test_a_straight_line_is_read_off_exactly():
    run = run_with([(one, 1.0 - 2 * (one - 0.2)) for one in (0.20, 0.26, 0.29, 0.31, 0.40)])
    assert at_matched(run, 0.3, "pass@64") == pytest.approx(0.8)


def test_points_of_one_pass_at_1_have_their_mean():
    assert at_matched(run_with([(0.3, 0.8), (0.3, 0.6)]), 0.3, "pass@64") == pytest.approx(0.7)


def test_evaluation_points_far_from_the_level_do_not_enter():
    near = [(0.28, 0.8), (0.32, 0.6)]
    assert at_matched(run_with([(0.10, 0.99), *near, (0.44, 0.1)]), 0.3, "pass@64") == pytest.approx(0.7)


def test_a_level_that_is_not_reached_has_no_value():
    assert math.isnan(at_matched(run_with([(0.1, 0.9), (0.25, 0.8)]), 0.3, "pass@64"))


def test_the_frontier_of_a_lock_that_hides_which_of_two_strategies_opens():
    # Strategy 0 opens three problems of four, strategy 1 the other: with share s of 0,
    # pass@1 = (3s + 1 − s)/4 and pass@2 = (3(1 − (1 − s)²) + 1 − s²)/4.
    has_valid = torch.tensor([[True, False]] * 3 + [[False, True]])
    points = frontier(has_valid, torch.zeros(4, dtype=torch.long), 2, num_points=9, num_steps=400)
    for one, many in points:
        s = (4 * one - 1) / 2
        assert many == pytest.approx((3 * (1 - (1 - s) ** 2) + 1 - s**2) / 4, abs=1e-9)
    # d pass@2/ds = 0 at 3(1 − s) = s.
    assert points[-1][0] == pytest.approx((3 * 0.75 + 0.25) / 4, abs=1e-3)
    assert points[0][0] == pytest.approx(0.75, abs=0.01)
    assert frontier_at(points, 0.7) == pytest.approx((3 * (1 - 0.1**2) + 1 - 0.9**2) / 4, abs=1e-2)


def test_beyond_its_ends_the_frontier_is_unknown():
    assert math.isnan(frontier_at([(0.5, 0.9), (0.4, 1.0)], 0.6))


def test_samples_from_two_policies_fail_together(tmp_path):
    """Two problems with one valid answer each: success .5 and .2 before, .9 and 0 after; 2 of 4 samples from before."""
    (tmp_path / "exact").mkdir()
    for step, success in ((0, [0.5, 0.2]), (3, [0.9, 1e-30])):
        np.savez(tmp_path / "exact" / f"step_{step:06d}.npz", logprobs=np.log(success))
    run = LabRun("locks", "grpo", 1, tmp_path, ("a", "b"), answers_of([0, 1]), ({"step": 0}, {"step": 3}))
    assert mixed_pass_at_k(run, 4, 0.5).tolist() == pytest.approx([1 - 0.25 * 0.01, 1 - 0.64])
    assert mixed_pass_at_k(run, 4, 0.0).tolist() == pytest.approx([1 - 0.1**4, 0.0])

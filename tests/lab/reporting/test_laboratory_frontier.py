import pytest
import torch

from apo_lab.editions.protocol import World
from apo_lab.puzzles import Locks
from apo_lab.reporting.laboratory.frontier import frontier, locks_frontier


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


def test_the_best_pass_at_1_of_two_instances_takes_the_best_strategy_of_each_class_in_each():
    overrides = ["experiment=lab/locks", "data.num_validation=48"]
    worlds = [
        World(name=str(secret), family="locks", level=0.4, base=(), run=(*overrides, f"data.puzzle.secret={secret}"))
        for secret in (0, 1)
    ]
    opened = 0
    for secret in (0, 1):
        puzzle = Locks(secret=secret)
        problems = puzzle.problems(48, 0, held_out=True)
        for lock_class in {problem[0] for problem in problems}:
            own = [problem for problem in problems if problem[0] == lock_class]
            opened += max(sum(puzzle.opens(problem, strategy) for problem in own) for strategy in range(12))
    assert locks_frontier(tuple(worlds), 64)[0][0] == pytest.approx(opened / 96, abs=0.01)

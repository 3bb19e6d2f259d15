"""Which completions are scored by lot: a simple random sample that knows neither algorithm nor rank."""

from dataclasses import replace

import pytest
import torch
from apo_lightning.step.subset import SMALLEST, draw_subset, smallest, subset_size

from factories import make_rollouts

B = 16


ROLLOUTS = make_rollouts(["correct"] * B, 4)


def drawn(fraction: float = 0.25, seed: int = 1, *, step: int = 1, required: tuple[int, ...] = ()) -> set[int]:
    is_required = torch.isin(torch.arange(B), torch.tensor(required, dtype=torch.long))
    return set(draw_subset(replace(ROLLOUTS, step=step), is_required, fraction, seed).nonzero().flatten().tolist())


def test_what_is_required_is_not_drawn():
    required = tuple(range(6))
    assert len(drawn(required=required)) == 4
    assert drawn(required=required).isdisjoint(required)


def test_another_algorithm_draws_the_same_completions_as_far_as_it_leaves_them_out():
    # Priorities are fixed: requiring a completion that was drawn lets the next one in, and moves no other.
    first = drawn()
    taken = min(first)
    second = drawn(required=(taken,))
    assert first - {taken} < second
    assert len(second) == len(first)


def test_step_and_seed_draw_anew():
    draws = {frozenset(drawn(0.5, seed, step=step)) for step in (1, 2, 3) for seed in (1, 2, 3)}
    assert len(draws) == 9


def test_every_completion_is_drawn_equally_often():
    counts = torch.zeros(B)
    num_steps = 3000
    for step in range(num_steps):
        counts[list(drawn(step=step))] += 1
    share = 0.25
    error = (share * (1 - share) / num_steps) ** 0.5
    assert ((counts / num_steps - share).abs() < 5 * error).all()


@pytest.mark.parametrize(("fraction", "size"), [(0.0, 0), (0.001, SMALLEST), (0.5, 8), (1.0, B)])
def test_the_fraction_is_of_all_completions_and_a_few_are_always_drawn(fraction, size):
    assert len(drawn(fraction)) == size


def test_fewer_are_drawn_where_fewer_are_left():
    assert drawn(required=tuple(range(B - 2))) == {B - 2, B - 1}
    assert drawn(required=tuple(range(B))) == set()


def test_the_smallest_priorities_win_wherever_they_are():
    assert smallest([[5, 1, 9], [], [2, 7]], 3) == [(0, 1), (2, 0), (0, 0)]
    assert smallest([[3, 3], [3]], 2) == [(0, 0), (0, 1)]


def test_the_papers_step_draws_as_many_as_its_error_needs():
    assert subset_size(4096, 1 / 64) == 64

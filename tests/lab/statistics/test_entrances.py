"""A change of pass@k, divided between entering and skill: golden values by hand, and exact sums."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.statistics.entrances import Entrances, change_of_pass_at_k, distances, weights_within
from apo_lab.statistics.exact import cover_curve, exact_pass_at_k


def entrances(mass, skill, problem=None):
    return Entrances(
        problem=torch.tensor(problem or [0] * len(mass)),
        mass=torch.tensor(mass, dtype=torch.float64),
        skill=torch.tensor(skill, dtype=torch.float64),
        num_problems=1 + max(problem or [0]),
    )


def parts(before, after, k):
    return change_of_pass_at_k(before, after, k).parts(before.num_problems)


def test_a_locked_entrance_and_a_forgotten_skill_are_told_apart():
    """Problem 0 is entered once in a thousand samples and still mastered; problem 1 is entered as before in vain."""
    before = entrances([0.4, 0.4], [0.5, 0.5], [0, 1])
    after = entrances([0.001, 0.4], [0.5, 0.0], [0, 1])
    found = parts(before, after, 64)
    at_first = 1 - 0.8**64
    assert found["locked"] == pytest.approx((1 - 0.9995**64 - at_first) / 2, abs=1e-14)
    assert found["forgotten"] == pytest.approx(-at_first / 2, abs=1e-14)
    assert (found["opened"], found["learnt"]) == (0, 0)
    change = change_of_pass_at_k(before, after, 64)
    assert (change.entering[1].item(), change.skill[0].item()) == (0, 0)
    # By hand: a sample of problem 0 enters with 0.001, the forced policy is right with 1/2.
    metrics = after.metrics(64)
    assert metrics["entered@64"] == pytest.approx((1 - 0.999**64 + 1 - 0.6**64) / 2)
    assert metrics["mass"] == pytest.approx(0.401 / 2)
    assert (metrics["pass@1"], metrics["forced_pass@1"]) == pytest.approx((0.0005 / 2, 0.25))
    assert metrics["forced_pass@64"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("k", "before", "after", "entering", "skill"),
    [
        # k = 1: Δp·(q₀ + q₁)/2 and Δq·(p₀ + p₁)/2.
        (1, ([0.5], [0.0]), ([1.0], [1.0]), [0.25], [0.75]),
        (1, ([0.6, 0.2], [0.5, 1.0]), ([0.1, 0.7], [0.5, 0.5]), [-0.25, 0.375], [0.0, -0.225]),
        # k = 2, p from 0 to 1 and q from 1/2 to 1: ∫ 2(1 − s)q dt with s = t(1 + t)/2 is 19/24, the rest 5/24.
        (2, ([0.0], [0.5]), ([1.0], [1.0]), [19 / 24], [5 / 24]),
        (2, ([1.0], [1.0]), ([0.0], [0.5]), [-19 / 24], [-5 / 24]),
        (3, ([0.0], [0.5]), ([1.0], [0.5]), [7 / 8], [0.0]),
        # A move of mass between equal skills: 64·0.5·0.2·0.9^63 at each, and no change of pass@64.
        (64, ([0.2, 0.0], [0.5, 0.5]), ([0.0, 0.2], [0.5, 0.5]), [-6.4 * 0.9**63, 6.4 * 0.9**63], [0.0, 0.0]),
    ],
)
def test_parts_by_hand(k, before, after, entering, skill):
    change = change_of_pass_at_k(entrances(*before), entrances(*after), k)
    assert change.entering.tolist() == pytest.approx(entering, abs=1e-14)
    assert change.skill.tolist() == pytest.approx(skill, abs=1e-14)


def test_gains_are_reported_apart_from_losses():
    found = parts(entrances([0.6, 0.2], [0.5, 1.0]), entrances([0.1, 0.7], [0.5, 0.5]), 1)
    assert found == pytest.approx({"locked": -0.25, "opened": 0.375, "forgotten": -0.225, "learnt": 0.0}, abs=1e-14)


unit = st.floats(0, 1)


@given(st.lists(st.tuples(*[unit] * 4, st.integers(0, 2)), min_size=1, max_size=8), st.sampled_from([1, 2, 7, 64, 256]))
def test_the_parts_add_up_to_the_change_of_pass_at_k(rows, k):
    *values, problem = zip(*rows, strict=True)
    p0, q0, p1, q1 = (torch.tensor(column, dtype=torch.float64) for column in values)
    # Masses of a problem's entrances sum to at most 1.
    before, after = (entrances((p / len(rows)).tolist(), q.tolist(), list(problem)) for p, q in ((p0, q0), (p1, q1)))
    change = change_of_pass_at_k(before, after, k)
    difference = exact_pass_at_k(after.success, k) - exact_pass_at_k(before.success, k)
    torch.testing.assert_close(before.summed(change.entering + change.skill), difference, atol=1e-12, rtol=0)
    total = sum(change.parts(before.num_problems).values())
    assert total == pytest.approx(difference.mean().item(), abs=1e-12)


def test_distances_by_hand_and_of_what_a_policy_has_ruled_out():
    base = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.25, 0.75]]).log()
    own = torch.tensor([[0.5, 0.5], [1.0, 1e-30], [0.75, 0.25]]).log()
    kl, variation = distances(own + 3, base)  # a constant does not matter
    log2, log3 = torch.tensor([2.0, 3.0], dtype=torch.float64).log().tolist()
    assert kl.tolist() == pytest.approx([0, log2, 0.5 * log3], abs=1e-7)
    assert variation.tolist() == pytest.approx([0, 0.5, 0.5], abs=1e-7)


def test_weights_sum_to_one_in_each_group_however_small():
    logprobs = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64).log() + torch.tensor([0, -2000, -2000])
    found = weights_within(torch.tensor([1, 0, 0]), logprobs)
    torch.testing.assert_close(found, torch.tensor([1, 0.4, 0.6], dtype=torch.float64))


@given(st.lists(unit, min_size=1))
def test_cover_falls_with_tau_and_its_integral_is_pass_at_1(success):
    values = torch.tensor(success, dtype=torch.float64)
    grid = [(i + 1) / 2000 for i in range(2000)]
    curve = list(cover_curve(values, grid).values())
    assert all(later <= earlier for earlier, later in itertools.pairwise(curve))
    assert sum(curve) / 2000 == pytest.approx(values.mean().item(), abs=1 / 2000)


def test_a_problem_at_tau_counts():
    assert cover_curve(torch.tensor([0.2, 0.1], dtype=torch.float64), (0.1, 0.2)) == {"cover@0.1": 1, "cover@0.2": 0.5}

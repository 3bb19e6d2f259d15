import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.common.phases import PhaseClock, StepTimer


class Time:
    """A clock that only moves when told to."""

    def __init__(self):
        self.seconds = 0.0

    def __call__(self):
        return self.seconds


def test_a_phase_that_runs_twice_adds_up_and_time_between_phases_belongs_to_none():
    time = Time()
    clock = PhaseClock(now=time)
    for _ in range(2):
        with clock.phase("generate"):
            time.seconds += 5
        time.seconds += 100
    assert clock.take() == {"generate": 10.0}
    assert clock.take() == {}


def test_taking_in_the_middle_of_a_phase_splits_its_time():
    time = Time()
    clock = PhaseClock(now=time)
    with clock.phase("update"):
        time.seconds += 3
        assert clock.take() == {"update": 3.0}
        time.seconds += 4
    assert clock.take() == {"update": 4.0}


def test_an_exception_closes_the_phase():
    time = Time()
    clock = PhaseClock(now=time)

    def fails():
        with clock.phase("reward"):
            time.seconds += 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    time.seconds += 7
    assert clock.take() == {"reward": 1.0}


@given(st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=8))
def test_no_second_is_counted_twice(tree):
    """A tree of nested phases, one second before and after every child: the phases' sum is the time that passed."""
    time = Time()
    clock = PhaseClock(now=time)

    def walk(node, depth):
        with clock.phase(f"depth {depth}"):
            time.seconds += 1
            for child in node:
                walk(child, depth + 1)
                time.seconds += 1

    walk(tree, 0)
    assert sum(clock.take().values()) == time.seconds


def test_steps_add_up_to_the_time_that_passed_but_for_pauses():
    time = Time()
    timer = StepTimer(PhaseClock(now=time), ("generate", "update"))
    timer.begin()
    taken = []
    for pause in (0.0, 40.0):
        time.seconds += 1
        timer.pause()
        time.seconds += pause
        timer.resume()
        timer.enter()
        with timer.clock.phase("generate"):
            time.seconds += 2
        time.seconds += 3  # in no phase
        taken.append(timer.take())
    expected = {"between_steps": 1.0, "generate": 2.0, "update": 0.0, "step": 6.0}
    assert taken == [expected, expected]

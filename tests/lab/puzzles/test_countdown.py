import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apo_lab.puzzles import Countdown
from apo_lab.puzzles.countdown import operator_sequences
from apo_lightning.errors import ConfigError

COUNTDOWN = Countdown(num_numbers=5, min_solutions=8, min_strategies=4)


def from_left_to_right(text):
    """The value, written a second time: by nesting brackets and asking Python."""
    nested = text[0]
    for operator, number in zip(text[1::2], text[2::2], strict=True):
        nested = f"({nested}{operator}{number})"
    return eval(nested)


def by_brute_force(numbers, target):
    return {
        text
        for order in set(itertools.permutations(numbers))
        for operators in operator_sequences(len(numbers))
        if from_left_to_right(text := order[0] + "".join(map("".join, zip(operators, order[1:], strict=True))))
        == target
    }


@pytest.mark.parametrize(
    ("least", "numbers", "total"), [((1, 1), 5, 88_024), ((8, 4), 5, 52_296), ((4, 2), 4, 5_714 + 1_400)]
)
def test_the_counts_of_all_problems(least, numbers, total):
    solutions, strategies = least
    sides = Countdown(num_numbers=numbers, min_solutions=solutions, min_strategies=strategies)._sides()
    assert sum(map(len, sides.values())) == total


@pytest.mark.parametrize("problem", ["13579=42:", "11223=12:", "99999=90:"])
def test_the_answers_are_those_of_a_search_by_brute_force(problem):
    assert {answer.text for answer in COUNTDOWN.answers(problem)} == by_brute_force(problem[:5], int(problem[6:-1]))


@settings(max_examples=60)
@given(st.text(alphabet="123456789+-*", min_size=7, max_size=11))
def test_a_completion_is_correct_iff_it_is_listed(text):
    problem = "13579=42:"
    assert COUNTDOWN.is_correct(problem, text) == (text in {answer.text for answer in COUNTDOWN.answers(problem)})


@pytest.mark.parametrize(
    "text", ["9*5-7+3+1 ", "9*5-7+3", "9*5-7+3+2", "42", "", "9*5-7+3+1+0", "9*5/7+3+1", "(9*5)-7+3+1"]
)
def test_near_misses_are_wrong(text):
    assert not COUNTDOWN.is_correct("13579=42:", text)


def test_sides_share_no_numbers():
    numbers = [{problem[:5] for problem in COUNTDOWN._sides()[held_out]} for held_out in (False, True)]
    assert not numbers[0] & numbers[1]


def test_a_demonstration_is_a_solution():
    random = Random(3)
    for _ in range(50):
        problem, text = COUNTDOWN.demonstration(random)
        assert from_left_to_right(text) == int(problem[6:-1])
        assert sorted(text[::2]) == sorted(problem[:5])


def test_what_cannot_be_listed_or_drawn_is_refused():
    with pytest.raises(ConfigError, match="num_numbers is 6"):
        Countdown(num_numbers=6)
    with pytest.raises(ConfigError, match="10245 are held out"):
        COUNTDOWN.problems(20_000, 0, held_out=True)

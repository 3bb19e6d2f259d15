"""The split of the made-up problems, which a result on held-out problems rests on."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.data import ArithmeticSource
from apo_lightning.errors import ConfigError


@st.composite
def settings(draw):
    operators = draw(st.lists(st.sampled_from(["+", "-", "*"]), min_size=1, unique=True))
    min_operand = draw(st.integers(-5, 5))
    max_operand = min_operand + draw(st.integers(1, 9))
    num_problems = len(operators) * (max_operand - min_operand + 1) ** 2
    return {
        "operators": operators,
        "min_operand": min_operand,
        "max_operand": max_operand,
        "num_validation": draw(st.integers(0, num_problems - 2)),
        "split_seed": draw(st.integers(0, 3)),
    }


def unordered(row):
    a, operator, b, _ = row.prefill.split()
    return (operator, *sorted((int(a), int(b)))) if operator in "+*" else (operator, int(a), int(b))


@given(settings())
def test_the_split_has_the_size_asked_for_and_no_problem_or_mirror_image_on_both_sides(settings):
    source = ArithmeticSource(**settings)
    problems = source.load()
    train, held_out = problems.train, [row for rows in problems.validation.values() for row in rows]
    assert {unordered(row) for row in train}.isdisjoint({unordered(row) for row in held_out})
    assert len({row.id for row in train + held_out}) == len(train) + len(held_out)
    num_problems = len(source.operators) * (source.max_operand - source.min_operand + 1) ** 2
    assert len(held_out) == source.num_validation
    assert num_problems - len(train) - len(held_out) in (0, 1)
    assert train
    report = problems.report
    assert (report.num_kept, report.num_held_out) == (len(train), len(held_out))
    for row in train + held_out:
        a, operator, b, equals = row.prefill.split()
        value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[operator]
        assert (row.answer, row.problem, equals) == (str(value), f"What is {a} {operator} {b}?", "=")


def test_the_split_is_the_same_every_time_and_another_for_another_seed():
    def split(seed):
        return [row.id for row in ArithmeticSource(split_seed=seed).load().validation["arithmetic"]]

    assert split(0) == split(0)
    assert set(split(0)) != set(split(1))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_operand": 9, "num_validation": 81}, r"operands 1\.\.9 make 81 problems, too few to hold out"),
        # Of 1+1, 2+2 and the pair 1+2, 2+1, three held out can cost the fourth, its mirror image.
        ({"max_operand": 2, "num_validation": 3}, "make 4 problems, too few to hold out"),
        ({"operators": ["/"]}, "operators has '/'"),
        ({"operators": []}, r"operators is \[\]"),
        ({"operators": ["+", "+"]}, "each once"),
        ({"min_operand": 9, "max_operand": 3}, "min_operand 9 is above max_operand 3"),
        ({"num_validation": -1}, "num_validation is -1"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens is 0"),
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ArithmeticSource(**settings)

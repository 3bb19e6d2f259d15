"""Ranges of settings: which values an interval has, and what a refusal says."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.errors import ConfigError

INSIDE = {
    "[0, 1]": lambda x: 0 <= x <= 1,
    "(0, 1]": lambda x: 0 < x <= 1,
    "[0, 1)": lambda x: 0 <= x < 1,
    "(0, 1)": lambda x: 0 < x < 1,
    "[1, inf)": lambda x: 1 <= x < math.inf,
    "(0, inf]": lambda x: x > 0,
    "(-inf, inf)": math.isfinite,
}


@given(st.one_of(st.floats(), st.integers(-3, 3), st.sampled_from([0.0, 1.0, math.inf, math.nan])))
def test_an_interval_has_the_numbers_that_its_brackets_say(number):
    for interval, has in INSIDE.items():
        assert Within(interval).allows(number) == has(number), interval
        assert Within(interval).allows(np.float64(number)) == has(number), interval


def test_a_bound_at_infinity_is_not_named():
    assert Within("(-inf, inf)").remedy == "give a number that is finite"
    assert Within("(0, inf]").remedy == "give a number above 0"


@pytest.mark.parametrize("value", ["0.5", None, [0.5]])
def test_what_is_no_number_is_in_no_interval(value):
    assert not Within("[0, 1]").allows(value)


@dataclass(frozen=True, kw_only=True)
class Example(Checked):
    section: ClassVar[str] = "example."
    share: Annotated[float, Within("(0, 1]", "such as 0.2")] = 0.2
    every: Annotated[int | None, Within("[1, inf)")] = None
    clip: Annotated[float | None, Within("(0, inf]", "or null for none")] = None
    how: Annotated[str, OneOf(("drop", "keep"))] = "drop"
    free: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Inherited(Example):
    more: Annotated[float, Within("[0, 1)")] = 0.0


@pytest.mark.parametrize("kind", [Example, Inherited])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"share": 0}, "example.share is 0: give a number above 0 and at most 1, such as 0.2"),
        ({"share": math.nan}, "example.share is nan: give a number above 0 and at most 1, such as 0.2"),
        ({"share": None}, "example.share is None: give a number above 0 and at most 1, such as 0.2"),
        ({"every": 0}, "example.every is 0: give a number of at least 1, or null"),
        ({"clip": -1.0}, "example.clip is -1.0: give a number above 0, or null for none"),
        ({"how": "leave"}, "example.how is 'leave': choose one of drop, keep"),
    ],
)
def test_a_value_outside_its_range_is_named_with_the_range(kind, given, said):
    with pytest.raises(ConfigError) as error:
        kind(**given)
    assert str(error.value) == said


def test_values_in_their_ranges_and_null_where_it_may_be_are_taken():
    made = Inherited(share=1, every=3, clip=math.inf, how="keep", free=math.nan, more=0.5)
    assert (made.share, made.every, made.more) == (1, 3, 0.5)
    assert Inherited().every is None

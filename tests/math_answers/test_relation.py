r"""Equality is a relation: an answer that is right for two golds that differ is a fault, whatever their labels.

The golds have no name, unit, base or sign of approximation, which an answer may leave out: no convention excuses one.
"""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.accuracy.relation import ANSWERS, violations
from math_answers import equal

# Of one line no two are the same.
GOLDS = {
    "points and intervals": [
        "(3,1)", "(2,2)", "(0,1)", "(1,3)", "[0,1]", "[4,2]", "(0,1]", "(3,1,2)", r"(0,1)\cup(2,3)",
    ],
    "sets": [
        r"\emptyset", r"\{1\}", r"\mathbb{R}", r"\mathbb{R}\setminus\{1\}", r"(1,\infty)", r"[1,\infty)", r"\{1,2\}",
    ],
    "lists": ["2, 3", "2, 3, 3", "2, 2, 3", "3, 3, 3"],
    "ratios": ["5:6", "1:2:3", "6:5", "0:1"],
    "steps": [
        "n", "0", "1", r"\lfloor n/9\rfloor", r"\lfloor n/10\rfloor", r"\lceil n/9\rceil", r"\binom{n}{16}",
        r"n\bmod 20", r"\gcd(n,11)", r"\gcd(n,16)", "|n-50|", r"\max(n,100)", "n!",
    ],
    "expressions": [
        r"\ln|x|", r"\sqrt{x^2}", "x", "-x", r"(-1)^n", r"(-1)^{n+1}", r"2^n", r"\frac{x^2-1}{x-1}+1",
    ],
    "numbers": ["e", r"\pi", r"\ln 2", "1", r"\frac52", r"\frac12", "42", r"\sqrt2", r"-\frac14", "10", "0"],
    "letters": ["A", "B", r"\text{A and C}", r"\text{B and C}", "abc", r"\text{None}"],
}  # fmt: skip


@pytest.mark.parametrize("kind", GOLDS)
def test_golds_differ_and_their_order_does_not_matter(kind):
    for one, other in itertools.combinations(GOLDS[kind], 2):
        assert not equal(one, other), (one, other)
        assert not equal(other, one), (one, other)


@pytest.mark.parametrize("kind", GOLDS)
def test_no_answer_is_right_for_two_golds(kind):
    assert list(violations(GOLDS[kind], ANSWERS, equal)) == []


NUMBERS = st.integers(-3, 12)
FORMS = [
    "({0},{1})", "[{0},{1}]", "({0},{1}]", "{0}:{1}", r"\{{{0},{1}\}}", "{0},{1}", r"\frac{{{0}}}{{{1}}}", "{0}<x<{1}",
    r"\lfloor n/{0}\rfloor+{1}", r"\gcd(n,{0})+{1}", "|x-{0}|+{1}", "{0}^{{{1}}}",
]  # fmt: skip


@given(data=st.data(), form=st.sampled_from(FORMS))
def test_what_is_the_same_as_one_is_the_same_as_the_other(data, form):
    pair = st.tuples(NUMBERS, NUMBERS)
    one, other, third = (form.format(*data.draw(pair)) for _ in range(3))
    if equal(one, other):
        assert equal(other, one)
        assert equal(one, third) == equal(other, third)

"""The decisions of docs/decisions/0011, one by one, as far as no mathematics is needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lightning.rewards.comparison import compare_answers, expressions
from apo_lightning.rewards.normalise import normalise
from apo_lightning.types import VerdictStatus


def status(gold: str, answer: str) -> VerdictStatus | None:
    """The verdict without mathematics; None where it would be needed."""
    return compare_answers(normalise(gold), normalise(answer), lambda one, other: None)


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("50", r"50\%"),  # a percent sign is a unit
        (r"50\%", "50"),
        ("336", r"336^\circ"),
        (r"5.4 \text{ cents}", "5.4"),
        ("9.8", "9.8 m"),  # where the gold is a number a letter is a unit
        ("(6,31,-1)", "6, 31, -1"),  # a list without brackets may be a point …
        (r"\{1,-2\}", "-2, 1"),  # … or a set
        ("1,-2", r"-2 \text{ or } 1"),
        ("1,-2", r"x = -2 \text{ or } x = 1"),
        ("5", r"\{5\}"),
        (r"1 \pm \sqrt{19}", r"1-\sqrt{19}, 1+\sqrt{19}"),
        (r"x \in [-2,7]", "[-2, 7]"),
        ("y = 2x + 3", "2x+3"),
        ("52_8", "52_{8}"),
        ("52_8", r"52_{\text{eight}}"),
        ("52_8", "52"),  # the problem names the base
        ("52", "52_8"),
        (r"\text{(C)}", "C"),
        (r"\text{east}", "East"),
        (r"(2,12) \cup (12,102)", r"(12,102) \cup (2,12.0)"),
        (r"\begin{pmatrix} 1/5 \\ 2 \end{pmatrix}", r"\begin{bmatrix} 0.2 \\ 2 \end{bmatrix}"),
        ("10,080", r"10{,}080"),
    ],
)
def test_what_is_the_same(gold: str, answer: str):
    assert status(gold, answer) == "correct"


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("50", "0.5"),
        (r"50\%", "0.5"),  # a percent sign never scales
        ("0.5", r"50\%"),
        ("5", r"5 \text{ million}"),
        ("5", "25"),
        (r"\frac{37}{4} m", r"\frac{37}{4}"),  # where the gold has a letter it is a variable
        ("2k", "2"),
        ("5", "5x"),
        ("(3,4)", r"\{3,4\}"),  # a point is no set
        ("(3,4)", "4, 3"),
        ("(3,4)", "[3,4]"),
        ("(3,4]", "[3,4)"),
        ("(3,4]", "3, 4"),  # without brackets it is no interval
        ("(4.6e-24, 1)", "(7e-22, 1)"),  # equal if rounded to six places
        (r"\{4.6e-24, 1\}", r"\{7e-22, 1\}"),
        ("2", r"\pm 2"),
        ("4", "1, 2, 3, 4"),
        ("3", "7 apples and 3 pears"),
        ("1, 2", "1, 2, 3"),
        (r"\{1, 2, 3\}", r"\{1, 2\}"),
        ("x=5", "y=5"),
        ("x=5, y=3", "x=3, y=5"),
        ("204_5", "204_6"),
        ("52_8", "42"),
        (r"\text{(B)}", r"\text{(C)}"),
        (r"\text{even}", "odd"),
        (r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}", r"\begin{pmatrix} 1 & 2 \end{pmatrix}"),
    ],
)
def test_what_is_not_the_same(gold: str, answer: str):
    assert status(gold, answer) == "incorrect"


@pytest.mark.parametrize(
    ("gold", "answer", "questions"),
    [
        (r"(1, 2\sqrt{2})", r"(1, \sqrt{8})", [(r"2\sqrt{2}", r"\sqrt{8}")]),
        (r"\{x, y\}", r"\{y, 2x\}", [("x", "2x")]),
        (r"(\sqrt{8}, 1)", "(x, 2)", []),  # the other part is wrong already: nothing depends on this one
        ("(2,\\infty)", "x > 2", [("(2,\\infty)", "x > 2")]),
    ],
)
def test_only_what_text_does_not_decide_is_asked(gold: str, answer: str, questions: list[tuple[str, str]]):
    asked: list[tuple[str, str]] = []
    verdict = compare_answers(normalise(gold), normalise(answer), lambda *pair: asked.append(pair))
    assert (verdict is None) == bool(questions)
    assert questions == [] or list(dict.fromkeys(asked)) == questions


def test_a_part_that_hung_ends_the_questions():
    parts = ", ".join(f"9^{{9^{{9^{n}}}}}" for n in range(2, 6))
    known: dict[tuple[str, str], VerdictStatus] = {("x", r"9^{9^{9^2}}"): "timeout"}
    assert compare_answers("x, y, z, u", parts, lambda *pair: known.get(pair)) == "timeout"


def test_an_endless_answer_is_asked_about_whole():
    asked: list[tuple[str, str]] = []
    compare_answers("(1,2)", "(1," * 300 + "2" + ")" * 300, lambda *pair: asked.append(pair))
    assert len(asked) == 1


def test_a_gold_answer_s_expressions_are_what_mathematics_must_read():
    assert expressions(r"(\sqrt{2}, 5, x+1]") == [r"\sqrt{2}", "x+1"]
    assert expressions("17") == []
    assert expressions(r"\text{east}") == []


@given(st.text(alphabet=r"()[]{},\pm=_ 12xyE.%/", max_size=60), st.text(alphabet=r"()[]{},\pm=_ 12xyE.%/", max_size=60))
def test_no_text_makes_it_raise_and_every_answer_equals_itself(gold: str, answer: str):
    assert compare_answers(normalise(gold), normalise(gold), lambda one, other: None) == "correct"
    status(gold, answer)

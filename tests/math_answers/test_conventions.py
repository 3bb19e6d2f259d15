"""The table of conventions in docs/verifier.md, row by row and in both directions."""

import re
from pathlib import Path

import pytest

from math_answers import equal, explain, extract

PAGE = Path(__file__).parents[2] / "docs" / "verifier.md"


def conventions() -> list[tuple[str, str, str, str]]:
    """(gold, answer, verdict, verdict of the two exchanged) of each row, one for each of its answers."""
    table = PAGE.read_text().partition("| gold | answer |")[2].partition("\n\n")[0]
    rows = [re.split(r"(?<!\\)\|", line)[1:5] for line in table.splitlines()[2:]]
    return [
        (gold, answer, verdict.strip(), exchanged.strip())
        for golds, answers, verdict, exchanged in rows
        for gold in re.findall("`([^`]+)`", golds)
        for answer in re.findall("`([^`]+)`", answers)
    ]


@pytest.mark.parametrize(("gold", "answer", "verdict", "exchanged"), conventions())
def test_a_convention_holds_in_the_directions_that_its_row_says(gold, answer, verdict, exchanged):
    assert {verdict, exchanged} <= {"same", "not"}
    assert equal(gold, answer) == (verdict == "same"), explain(gold, answer)
    assert equal(answer, gold) == (exchanged == "same"), explain(answer, gold)


def test_the_table_has_a_row_for_each_convention():
    assert len(conventions()) == 28


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("52_8", "52_9"),
        ("(1, 2)", "2, 1"),
        ("(1, -2, 3)", r"\begin{pmatrix} 1 & -2 & 3 \end{pmatrix}"),
        ("2.5", r"2\text{ hours } 30\text{ minutes}"),
        (r"\ln 5", r"\lg 5"),
        ("3:30", "1:10"),
    ],
)
def test_what_a_row_excepts_is_refused(gold, answer):
    assert not equal(gold, answer)
    assert not equal(answer, gold)


def test_a_whole_number_is_no_approximation():
    assert not equal("42", r"\approx 42")


def test_a_set_does_not_say_how_often():
    assert equal(r"\{1, 2\}", r"\{1, 2, 2\}")


def test_a_box_inside_of_think_counts():
    assert extract(r"<think>It is \boxed{5}.</think> So it is.") == "5"

"""The page, the command and the list say the same, and every statement holds on the losses that train."""

import re

import pytest

from apo_lab.theory.__main__ import main
from apo_lab.theory.page import section, summary
from apo_lab.theory.statements import STATEMENTS, Reading, Truth
from composing import ROOT

PAGE = ROOT / "docs" / "theory.md"
STEADY = ("F2", "E4", "C2", "C14", "C18", "C19", "C20", "P1")
"""Statements whose numbers are the same on every machine."""
SECTION = re.compile(r"^### (\w+)\. (.+): ([a-z ]+)$", re.MULTILINE)


def test_the_page_has_every_statement_with_its_claim_formula_and_finding():
    text = PAGE.read_text()
    assert SECTION.findall(text) == [(s.key, s.title, s.truth.value) for s in STATEMENTS]
    missing = [s.key for s in STATEMENTS if f"*{s.claim}* ({s.where})\n\n{s.formula}\n" not in text]
    assert missing == []
    assert all(f"**{truth.value}**" in text for truth in Truth)


def test_the_command_prints_the_readings_of_a_statement_and_succeeds(capsys):
    assert main(["--only", "C20", "C2"]) == 0
    out = capsys.readouterr().out
    assert "### C2. Released mass: false" in out
    assert "| counter-example: π'_1 | 0.0208 | = 0.021 |" in out
    assert "2 statements hold" in out
    with pytest.raises(SystemExit):
        main(["--only", "C99"])
    assert "there is no statement C99" in capsys.readouterr().err


def test_a_reading_that_does_not_hold_has_a_line_of_its_own():
    first, *others = summary(STATEMENTS[0], [Reading("good", 1.0, 1.0), Reading("bad", 1.0, 2.0)]).splitlines()
    assert first.split() == ["F1", "Forces", "of", "one", "token", "exact", "1/2", "readings", "hold"]
    assert others == ["    bad: 1, not = 2"]


@pytest.mark.parametrize(("relation", "holds"), [("=", False), ("<", True), (">", False)])
def test_a_bound_is_one_sided_and_nan_never_holds(relation, holds):
    assert Reading("x", 1.0, 2.0, relation=relation).holds is holds
    assert not Reading("x", float("nan"), 2.0, relation=relation).holds


def test_every_figure_that_a_statement_names_is_drawn_and_on_the_page():
    from apo_lab.theory.figures import FIGURES

    named = {statement.figure for statement in STATEMENTS} - {""}
    assert named == set(FIGURES)
    for name in FIGURES:
        path = PAGE.parent / "figures" / "theory" / f"{name}.svg"
        assert path.stat().st_size < 150_000
        assert f"](figures/theory/{name}.svg)\n" in PAGE.read_text()


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda statement: statement.key)
def test_what_is_measured_is_what_the_formula_says_and_stands_on_the_page(statement):
    readings = list(statement.check())
    assert [reading for reading in readings if not reading.holds] == []
    if statement.key in STEADY:
        assert section(statement, readings) in PAGE.read_text()


def test_every_claim_of_the_list_has_one_statement():
    keys = "F1 F2 E1 E2 E3 E4", " ".join(f"C{number}" for number in range(1, 21)), "P1 G1 G2 T1 T2"
    assert [statement.key for statement in STATEMENTS] == " ".join(keys).split()

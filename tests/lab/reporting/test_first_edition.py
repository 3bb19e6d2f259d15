"""The page of the first edition has the numbers that its runs wrote."""

import json
import re

import pytest

from composing import ROOT

RESULTS = json.loads((ROOT / "docs/lab/first-edition.json").read_text())
PAGE = (ROOT / "docs/lab/first-edition.md").read_text()


def cells(line):
    return [re.sub(r"\*\*|\\", "", cell).strip() for cell in line.strip("|").split("|")]


LINES = [cells(line) for line in PAGE.splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("table", ["lab_main", "lab_matched", "lab_baselines", "lab_revival", "lab_predictions"])
def test_every_row_of_the_file_stands_on_the_page(table):
    for row in RESULTS[table]:
        expected = [value for key, value in row.items() if key != "section" and not key.endswith("interval")]
        assert any(agrees(line, expected) for line in LINES), row


def agrees(line, expected):
    return len(line) == len(expected) and all(
        shown == value if isinstance(value, str) else number(shown) == pytest.approx(value, abs=0.0051)
        for shown, value in zip(line, expected, strict=True)
    )


def number(shown):
    found = re.match(r"[+-]?[\d.,]+", shown)
    return float(found.group().replace(",", "")) if found else float("nan")

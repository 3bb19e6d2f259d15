"""docs/lab.md and the file that `make lab` wrote say the same, and the predictions' page lists what is decided."""

import json
import re

import pytest

from apo_lab.reporting.laboratory.predictions import PREDICTIONS
from composing import ROOT

RESULTS = json.loads((ROOT / "docs/lab/results.json").read_text())
PAGE = (ROOT / "docs/lab.md").read_text()


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


def test_the_page_of_predictions_lists_those_that_are_decided():
    registered = (ROOT / "docs/lab-predictions.md").read_text()
    for prediction in PREDICTIONS:
        assert f"| {prediction.statement} | {prediction.source} | {', '.join(prediction.puzzles)} |" in registered

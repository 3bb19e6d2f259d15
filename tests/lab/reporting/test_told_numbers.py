"""The numbers that pages tell of the laboratory stand in its published pages, with or without an error.

`told_numbers.csv` says for each number without one where it stands: edition, table and section, first cell of the row;
or that it is a constant, and where that comes from.
"""

import functools
import re
from dataclasses import dataclass

import pandas as pd
import pytest

from composing import ROOT

LAB = ROOT / "docs" / "lab"
WITH_ERROR = re.compile(r"([+-]?\d+\.\d+)(?: %| points)?\s+(±\s+\d+\.\d+|\[[-+.\d]+,\s+[-+.\d]+\])")
PLAIN = re.compile(r"(?<![\w.,/-])(?:([+-]?\d+\.\d+)(?!\w|\.\d)|(\d+)(?= %))")
NO_PROSE = re.compile(r"^```.*?^```|`[^`]*`|!\[[^]]*\]\([^)]*\)|\]\([^)]*\)|\d{4}\.\d{5}", re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"\n(?=- |\n|\|)")
ARMS = (
    *("KL at the entrance", "W-REINFORCE", "Unlikeliness", "clip-higher", "Inverse frequency"),
    *("Lp-Reg", "MaxRL", "PKPO", "APO", "GRPO", "Base"),
)
"""Names of arms by which the rows of a paragraph are found."""
EDITIONS = {
    "What the runs say": ("full", "countdown_rates", "sizes", "language", "across"),
    "Locks at equal pass@1": ("longer", "cliff", "full"),
    "Which methods keep a branch": ("branches", "across"),
    "A KL at the entrance alone": ("recipe", "longer", "cliff"),
    "Weights or decoding": ("decoding", "across"),
    "A pretrained language model": ("dominance",),
    "Limits": ("full", "across"),
}
"""Section of docs/lab/editions.md → the editions whose numbers it tells."""
CONSTANTS = {
    "0.351 0.444 0.984 0.862": "a tuning run of GRPO on countdown_3, by which L* was set before the edition full",
    "34.5": "the level of the edition branches on locks",
    "46.39": "PKPO's pass@1 at step 10 on divisors, in docs/lab/language/curves.csv.gz",
    "0.70": "a share of the best single kind, in docs/lab/across",
    "0.45 0.64 0.94": "shares of dominance, and the share of the best single answer's pass@1 where its runs end",
    "91.67": "pass@32 of the base models of decoding, in benchmarks/RESULTS.md",
    "0.041": "base models that were not used",
}
"""Numbers of docs/lab/editions.md that no published page has."""


@dataclass(frozen=True)
class Row:
    """A row of a table of a published page."""

    edition: str
    table: str
    """The title and the section."""
    first: str
    numbers: tuple[str, ...]

    def has(self, number: str) -> bool:
        """Whether a cell, rounded to as many decimals, is this number; without a sign, or is its size."""
        decimals = len(number.partition(".")[2])
        exact = (float(each) for each in self.numbers if len(each.partition(".")[2]) >= decimals)
        shown = exact if number[0] in "+-" else map(abs, exact)
        return any(abs(float(number) - each) <= 0.5 * 10.0**-decimals + 1e-9 for each in shown)


def read(path):
    return path.read_text().replace("**", "").replace("−", "-").replace("\\", "")


@functools.cache
def rows():
    found = []
    for path in sorted(LAB.glob("*/report/report.md")):
        title = section = ""
        for line in read(path).splitlines():
            if line.startswith("## "):
                title, section = line, ""
            elif line.startswith("| "):
                first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
                numbers = tuple(re.findall(r"[+-]?\d+(?:\.\d+)?", " | ".join(cells)))
                found.append(Row(path.parts[-3], f"{title}|{section}", first, numbers))
            elif line and not line.startswith("|"):
                section = line
    return found


@functools.cache
def with_errors():
    pages = [*LAB.glob("*/report/report.md"), LAB / "first-edition.md"]
    texts = (re.sub(r" (?=\|)| +", " ", read(path)) for path in pages)
    return {pair for text in texts for pair in told_with_error(text)}


def told_with_error(text):
    return {(value, "".join(error.split())) for value, error in WITH_ERROR.findall(text)}


def plain(text):
    """The numbers of a page's prose and tables without an error."""
    prose = NO_PROSE.sub(" ", text.replace("**", "").replace("−", "-"))
    return [found[1] or found[2] for found in PLAIN.finditer(WITH_ERROR.sub(" ", prose))]


def unknown(page, text):
    """Plain numbers of a page that are not in told_numbers.csv, or whose row does not have them."""
    ledger = pd.read_csv(ROOT / "tests/lab/reporting/told_numbers.csv", dtype=str, keep_default_na=False)
    own, wrong = ledger[ledger["page"] == page], []
    for entry in own[own["edition"] != "constant"].itertuples():
        parts = entry.table.split("|")
        there = [row for row in rows() if (row.edition, row.first) == (entry.edition, entry.row)]
        if not any(row.has(entry.number) for row in there if all(part in row.table for part in parts)):
            wrong.append(entry.number)
    return [*wrong, *(number for number in plain(text) if number not in set(own["number"]))]


@pytest.mark.parametrize(
    "page",
    ["README.md", "docs/lab.md", "docs/lab/editions.md", "docs/papers.md", "examples/locks_pareto/locks_pareto.ipynb"],
)
def test_numbers_with_an_error_stand_in_the_pages_of_the_editions(page):
    def is_of(value, error, published):
        half = 0.5 * 10.0 ** -len(value.partition(".")[2]) + 1e-9
        return any(error == other and abs(float(value) - float(exact)) <= half for exact, other in published)

    own = told_with_error(read(ROOT / page))
    assert len(own) >= 3 or page not in ("README.md", "docs/lab.md", "docs/lab/editions.md")
    assert [each for each in own if not is_of(*each, with_errors())] == []


@pytest.mark.parametrize("page", ["README.md", "docs/lab.md", "docs/papers.md"])
def test_numbers_without_an_error_stand_in_the_rows_that_are_named_for_them(page):
    text = (ROOT / page).read_text()
    assert unknown(page, text) == []
    changed = [f"{number[:-1]}{(int(number[-1]) + shift) % 10}" for number in plain(text) for shift in range(1, 10)]
    assert sum(not unknown(page, f"{each} %") for each in changed) <= len(changed) // 4


def test_numbers_without_an_error_in_the_page_of_editions_stand_in_a_row_of_an_arm_that_is_named():
    known, missing = " ".join(CONSTANTS).split(), []
    for part in re.split(r"^## ", read(LAB / "editions.md"), flags=re.MULTILINE)[1:]:
        of = EDITIONS[part.partition("\n")[0]]
        for block in BLOCK.split(part):
            named = [name.lower() for name in ARMS if name.lower() in block.lower()] or [""]
            pool = [row for row in rows() if row.edition in of]
            near = [row for row in pool if any(name in (row.first + row.table).lower() for name in [*named, "base"])]
            missing += [n for n in plain(block) if n not in known and not any(row.has(n) for row in near)]
    assert missing == []


def test_a_changed_digit_is_found():
    assert unknown("docs/lab.md", "its pass@64 falls at 0.79 to 0.88 times") == ["0.88"]
    assert unknown("README.md", "inverse frequency +2.4 points") == ["+2.4"]
    assert not Row("", "", "", ("+21.87",)).has("21.8")

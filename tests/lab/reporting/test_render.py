"""Tables in Markdown, LaTeX and CSV."""

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apo_lab.reporting.records import Cell, Column, Table, TableRow
from apo_lab.reporting.render import csv_text, escape, latex, markdown, write_tables

BEST = Cell(text="43.57", value=43.5749, interval=(41.25, 45.875), interval_text="[41.2, 45.9]", bold=True)
TABLE = Table(
    name="main",
    title="Main results",
    columns=(Column(name="Method", align="left"), Column(name="Pass@1", group="AIME 24"), Column(name="K")),
    rows=(
        TableRow(cells=(Cell(text="Base"), Cell(text="–"), Cell(text="256", value=256.0)), section="Qwen"),
        TableRow(
            cells=(Cell(text="APO (β = 0.1)"), BEST, Cell(text="8", value=8.0, marked=True)),
            section="Qwen",
            highlight=True,
        ),
    ),
    notes=("Marked: wrong.", "Bold: best."),
)


def test_markdown_says_what_a_mark_means() -> None:
    assert markdown(TABLE) == (
        "### Main results\n"
        "\n"
        "**Qwen**\n"
        "\n"
        "| Method | AIME 24 Pass@1 | K |\n"
        "|:--|--:|--:|\n"
        "| Base | – | 256 |\n"
        "| APO (β = 0.1) | **43.57** [41.2, 45.9] | 8† |\n"
        "\n"
        "†: wrong.  \n"
        "Bold: best.\n"
    )


def test_latex_has_groups_bold_small_intervals_and_a_grey_default() -> None:
    text = latex(TABLE)
    assert r"\begin{tabular}{lrr}" in text
    assert r" & \multicolumn{1}{c}{AIME 24} &  \\" in text
    assert r"\cmidrule(lr){2-2}" in text
    assert r"APO ($\beta$ = 0.1) & \textbf{43.57} & 8$^\dagger$ \\" in text
    assert r" & {\scriptsize [41.2, 45.9]} &  \\" in text
    assert text.count(r"\rowcolor{gray!15}") == 2
    assert text.count("{") == text.count("}")
    assert "resizebox" not in text


def test_a_row_of_latex_never_begins_with_a_bracket_that_a_line_break_would_swallow() -> None:
    # `\\` followed by `[` is an optional length to LaTeX.
    assert not re.search(r"\\\\\s*\[", latex(TABLE))


def test_a_table_wider_than_a_page_is_scaled() -> None:
    wide = Table(
        name="w",
        title="Wide",
        columns=tuple(Column(name=str(index)) for index in range(9)),
        rows=(TableRow(cells=tuple(Cell(text="1") for _ in range(9))),),
    )
    assert r"\resizebox{\textwidth}{!}{%" in latex(wide)
    assert latex(wide).count("{") == latex(wide).count("}")


def test_csv_holds_unrounded_numbers_and_bounds() -> None:
    header, first, second = csv.reader(io.StringIO(csv_text(TABLE)))
    assert header == ["section", "Method", "AIME 24 Pass@1", "AIME 24 Pass@1 low", "AIME 24 Pass@1 high", "K", "marked"]
    assert first == ["Qwen", "Base", "–", "", "", "256", ""]
    assert second == ["Qwen", "APO (β = 0.1)", "43.5749", "41.25", "45.875", "8", "K"]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_number_survives_the_csv_to_twelve_digits(value: float) -> None:
    table = Table(
        name="t", title="T", columns=(Column(name="x"),), rows=(TableRow(cells=(Cell(text="x", value=value),)),)
    )
    _, row = csv.reader(io.StringIO(csv_text(table)))
    assert float(row[1]) == pytest.approx(value, rel=1e-11)


def test_hostile_text_cannot_break_a_table() -> None:
    text = "a|b `c` <script> *x* [y](z) \\ _d_ snake_case\nline"
    table = Table(name="t", title="T", columns=(Column(name="x"),), rows=(TableRow(cells=(Cell(text=text),)),))
    line = markdown(table).splitlines()[4]
    assert line == r"| a\|b \`c\` \<script> \*x\* \[y](z) \\ \_d\_ snake_case line |"


@given(st.text(alphabet="\\&%$#_{}~^<>βλε×†“”a ", max_size=20))
def test_latex_leaves_no_special_character_bare(text: str) -> None:
    escaped = escape(text)
    bare = re.sub(r"\\text\w+\{\}|\\[&%$#_{}]|\$[^$]+\$", "", escaped).replace(
        "~", "" if "\N{NO-BREAK SPACE}" in text else "~"
    )
    assert not re.search(r"[\\&%$#_{}~^]", bare)


def test_files_are_the_same_twice(tmp_path: Path) -> None:
    first = [path.read_bytes() for path in write_tables([TABLE], tmp_path / "a")]
    paths = write_tables([TABLE], tmp_path / "b")
    assert [path.name for path in paths] == ["main.md", "main.tex", "main.csv"]
    assert [path.read_bytes() for path in paths] == first

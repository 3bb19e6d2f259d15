"""A table as Markdown, LaTeX or CSV."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from apo_lab.reporting.records import MARK, Alignment, Cell, Column, Table
from apo_lightning.common.files import write_atomically

SIGNIFICANT_DIGITS = 12
"""Digits of a number in CSV: all that is known, without the noise of binary fractions (28.299999999999997)."""
WIDEST_UNSCALED = 8
"""Columns up to which a LaTeX table keeps its size."""

_LATEX = {
    "\\": r"\textbackslash{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "β": r"$\beta$",
    "λ": r"$\lambda$",
    "ε": r"$\varepsilon$",
    "π": r"$\pi$",
    "×": r"$\times$",
    "≥": r"$\geq$",
    "±": r"$\pm$",
    "−": r"$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "†": r"$^\dagger$",
    "–": "--",
    "…": r"\ldots{}",
    "“": "``",
    "”": "''",
    "\N{NO-BREAK SPACE}": "~",
    "\n": " ",
}
_RULE: dict[Alignment, str] = {"left": ":{}-", "right": "-{}:"}


def write_tables(tables: Iterable[Table], folder: Path) -> tuple[Path, ...]:
    """Write `<name>.md`, `.tex` and `.csv` of every table; returns the paths in that order."""
    paths = []
    for table in tables:
        for suffix, text in (("md", markdown(table)), ("tex", latex(table)), ("csv", csv_text(table))):
            paths.append(folder / f"{table.name}.{suffix}")
            write_atomically(paths[-1], text.encode("utf-8"))
    return tuple(paths)


def markdown(table: Table) -> str:
    """A GitHub table for each section, columns padded so that it reads as well in a terminal."""
    parts = [f"### {table.title}"]
    header = [_plain(column.title) for column in table.columns]
    body = [[_markdown_cell(cell) for cell in row.cells] for row in table.rows]
    # Sections share their widths, so that a reader can follow a column down the page.
    widths = [max(3, *map(len, column)) for column in zip(header, *body, strict=True)]
    lines = iter(body)
    for section, rows in table.sections:
        grid = [_padded(header, widths, table.columns), _rule(widths, table.columns)]
        grid += [_padded(next(lines), widths, table.columns) for _ in rows]
        parts += [f"**{_plain(section)}**"] if section else []
        parts.append("\n".join(grid))
    # Two spaces end a line without ending the paragraph.
    parts += ["  \n".join(map(_plain, table.printed_notes))] if table.notes else []
    return "\n\n".join(parts) + "\n"


def latex(table: Table) -> str:
    """A `table*` for booktabs, with intervals below their numbers in small print.

    Default rows of sweeps are grey, which needs the package xcolor with `table`. One of more than eight columns, which
    would not fit a page otherwise, is scaled to its width with graphicx.
    """
    template = _environment(
        False, block_start_string="<%", block_end_string="%>", variable_start_string="<<", variable_end_string=">>"
    )
    return template.get_template("table.tex.j2").render(table=table, mark=MARK, widest=WIDEST_UNSCALED)


def csv_text(table: Table) -> str:
    """One line a row: the section, every column, and a column's bounds behind it wherever it has intervals.

    Numbers have twelve digits, in the unit that is printed; a `marked` column says which columns are marked in a row.
    """
    bounded = [any(row.cells[index].interval for row in table.rows) for index in range(len(table.columns))]
    header = ["section"]
    for column, has_bounds in zip(table.columns, bounded, strict=True):
        header += [column.title, *([f"{column.title} low", f"{column.title} high"] if has_bounds else [])]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*header, "marked"])
    for row in table.rows:
        line = [row.section]
        for cell, has_bounds in zip(row.cells, bounded, strict=True):
            line.append(cell.text if cell.value is None else _digits(cell.value))
            line += ([_digits(bound) for bound in cell.interval] if cell.interval else ["", ""]) if has_bounds else []
        marked = [column.name for column, cell in zip(table.columns, row.cells, strict=True) if cell.marked]
        writer.writerow([*line, " ".join(marked)])
    return text.getvalue()


def template(name: str) -> Template:
    """A page of `templates/`, which escapes all values that it inserts and refuses names that are not given."""
    return _environment(True).get_template(name)


def escape(text: str) -> str:
    r"""Text for LaTeX: its special characters escaped, the signs that tables use as mathematics.

    Example:
        >>> print(escape("AIME_24 & 50 %: β = 0.1"))
        AIME\_24 \& 50 \%: $\beta$ = 0.1
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _environment(autoescape: bool, **syntax: Any) -> Environment:
    found = Environment(
        loader=PackageLoader("apo_lab.reporting"),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **syntax,
    )
    found.filters["tex"] = escape
    return found


def _digits(value: float) -> str:
    return f"{value:.{SIGNIFICANT_DIGITS}g}"


def _plain(text: str) -> str:
    """Text that Markdown takes literally where it stands in a table; `_` and `[` stay bare where they mean nothing."""
    text = re.sub(r"([\\`*<|]|\b_|_\b|\[(?=[^\]]*\]\())", r"\\\1", text)
    return " ".join(text.split())


def _markdown_cell(cell: Cell) -> str:
    text = _plain(cell.text)
    text = f"**{text}**" if cell.bold else text
    text += MARK if cell.marked else ""
    # An interval is not a link: nothing follows its closing bracket.
    return f"{text} {cell.interval_text}" if cell.interval_text else text


def _padded(cells: Sequence[str], widths: Sequence[int], columns: Sequence[Column]) -> str:
    fill = {"left": str.ljust, "right": str.rjust}
    return f"| {' | '.join(fill[c.align](cell, n) for c, cell, n in zip(columns, cells, widths, strict=True))} |"


def _rule(widths: Sequence[int], columns: Sequence[Column]) -> str:
    return f"|{'|'.join(_RULE[c.align].format('-' * width) for c, width in zip(columns, widths, strict=True))}|"

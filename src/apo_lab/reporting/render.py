"""A table as Markdown, LaTeX or CSV."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from apo_lab.reporting.records import MARK, Table
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
# For LaTeX, which has braces in its text.
DELIMITERS = {
    "block_start_string": "<%",
    "block_end_string": "%>",
    "variable_start_string": "<<",
    "variable_end_string": ">>",
}


def write_tables(tables: Iterable[Table], folder: Path) -> tuple[Path, ...]:
    """Write `<name>.md`, `.tex` and `.csv` of every table; returns the paths in that order."""
    paths = []
    for table in tables:
        for suffix, text in (("md", markdown(table)), ("tex", latex(table)), ("csv", csv_text(table))):
            paths.append(folder / f"{table.name}.{suffix}")
            write_atomically(paths[-1], text.encode("utf-8"))
    return tuple(paths)


def markdown(table: Table) -> str:
    """A GitHub table for each section."""
    return template("table.md.j2", **DELIMITERS).render(table=table, mark=MARK)


def latex(table: Table) -> str:
    """A `table*` for booktabs, with intervals below their numbers in small print.

    Default rows of sweeps are grey, which needs the package xcolor with `table`. One of more than eight columns, which
    would not fit a page otherwise, is scaled to its width with graphicx.
    """
    return template("table.tex.j2", **DELIMITERS).render(table=table, mark=MARK, widest=WIDEST_UNSCALED)


def csv_text(table: Table) -> str:
    """One line a row: the section, every column, and a column's bounds behind it wherever it has intervals.

    Numbers have twelve digits, in the unit that is printed; a `marked` column says which columns are marked in a row.
    """
    records, columns = [], ["section"]
    for row in table.rows:
        marked = [column.name for column, cell in zip(table.columns, row.cells, strict=True) if cell.marked]
        records.append({"section": row.section, "marked": " ".join(marked)})
        for column, cell in zip(table.columns, row.cells, strict=True):
            records[-1][column.title] = cell.text if cell.value is None else _digits(cell.value)
            for name, bound in zip(("low", "high"), cell.interval or (), strict=False):
                records[-1][f"{column.title} {name}"] = _digits(bound)
    for column in table.columns:
        bounds = [f"{column.title} {name}" for name in ("low", "high")]
        columns += [column.title, *(bounds if any(bounds[0] in record for record in records) else [])]
    return pd.DataFrame(records).reindex(columns=[*columns, "marked"]).to_csv(index=False, lineterminator="\n")


def template(name: str, **syntax: Any) -> Template:
    """A template of `templates/`, which refuses names that are not given; HTML escapes all values that it inserts."""
    environment = Environment(
        loader=PackageLoader("apo_lab.reporting"),
        autoescape=name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        **syntax,
    )
    environment.filters |= {"tex": escape, "md": _plain}
    return environment.get_template(name)


def escape(text: str) -> str:
    r"""Text for LaTeX: its special characters escaped, the signs that tables use as mathematics.

    Example:
        >>> print(escape("AIME_24 & 50 %: β = 0.1"))
        AIME\_24 \& 50 \%: $\beta$ = 0.1
    """
    return "".join(_LATEX.get(character, character) for character in text)


def _digits(value: float) -> str:
    return f"{value:.{SIGNIFICANT_DIGITS}g}"


def _plain(text: str) -> str:
    """Text that Markdown takes literally where it stands in a table; `_` and `[` stay bare where they mean nothing."""
    text = re.sub(r"([\\`*<|]|\b_|_\b|\[(?=[^\]]*\]\())", r"\\\1", text)
    return " ".join(text.split())

"""A report on disk: `report.html`, which needs no other file, `report.md`, and a file of each table and figure."""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from apo_lightning.common.files import write_atomically
from apo_lightning.common.formatting import as_cell, printable
from apo_lightning.evaluation.card import warnings
from apo_report.figures.canvas import NamedFigure, inline_svg, save
from apo_report.names import BENCHMARKS
from apo_report.records import Cell, Evaluated, Evaluations, Table

SIGNIFICANT_DIGITS = 12
"""Digits of a number in CSV: all that is known, without the noise of binary fractions (28.299999999999997)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of the page."""

    title: str
    date: str
    """The date as it is printed: the page never reads a clock."""
    num_runs: int
    apart: Sequence[str] = ()
    """Blocks of models that were measured in several ways: nothing compares them with one another."""
    tables: Sequence[Table] = ()
    figures: Sequence[NamedFigure] = ()
    evaluations: Evaluations = field(default_factory=Evaluations)

    @property
    def warnings(self) -> list[str]:
        """What weakens the numbers, a sentence each: first that blocks are not compared, then of single evaluations."""
        said = "Measured in different ways, and so not compared with one another: "
        apart = [f"{said}{' | '.join(self.apart)}. Measure all alike to compare."] if self.apart else []
        return [*apart, *(text for item in self.evaluations.results for text in warnings_of(item))]


def write_report(report: Report, folder: Path) -> Path:
    """Write `tables/`, `figures/`, `report.md` and `report.html`, which links to all files; returns its path."""
    for table in report.tables:
        write_atomically(folder / "tables" / f"{table.name}.md", printable(markdown(table)).encode())
        write_atomically(folder / "tables" / f"{table.name}.csv", printable(csv_text(table)).encode())
    for named in report.figures:
        save(named, folder / "figures")
    write_atomically(folder / "report.md", printable(markdown_page(report)).encode())
    write_atomically(folder / "report.html", printable(page(report)).encode())
    return folder / "report.html"


def page(report: Report) -> str:
    """The whole page as HTML, with links to the files that `write_report` writes."""
    environment = Environment(
        loader=PackageLoader("apo_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figures = [(figure, Markup(inline_svg(figure))) for figure in report.figures]
    return environment.get_template("report.html.j2").render(report=report, figures=figures)


def markdown_page(report: Report) -> str:
    """The page as Markdown, with the SVG files of `figures/`."""
    parts = [f"# {_plain(report.title)}\n", f"{report.date}. Training runs: {report.num_runs}.\n"]
    parts += [f"> {_plain(warning)}\n" for warning in report.warnings]
    parts += [markdown(table).replace("### ", "## ", 1) for table in report.tables]
    for figure in report.figures:
        title = _plain(figure.title)
        parts += [f"## {title}\n", f"![{title}](figures/{figure.name}.svg)\n", f"{_plain(figure.caption)}\n"]
    return "\n".join(parts)


def markdown(table: Table) -> str:
    """A GitHub table for each section, and the notes."""
    parts = [f"### {_plain(table.title)}\n"]
    for section, rows in table.sections:
        lines = [_line(_plain(column.title) for column in table.columns)]
        lines.append("|" + "".join("--:|" if column.is_number else ":--|" for column in table.columns) + "\n")
        lines += [_line(map(_markdown_cell, row.cells)) for row in rows]
        parts += [f"**{_plain(section)}**\n"] if section else []
        parts.append("".join(lines))
    if table.notes:
        parts.append("  \n".join(map(_plain, table.notes)) + "\n")
    return "\n".join(parts)


def csv_text(table: Table) -> str:
    """One line a row: the section, every column, and a column's bounds behind it wherever it has intervals.

    Numbers have twelve digits, in the unit that is printed. A text that a spreadsheet would compute begins with `'`.
    """
    records: list[dict[str, str | None]] = []
    for row in table.rows:
        records.append({"section": row.section})
        for column, cell in zip(table.columns, row.cells, strict=True):
            records[-1] |= _values(column.title, cell)
    table_of_texts = pd.DataFrame(records).dropna(axis="columns", how="all").rename(columns=as_cell)
    return table_of_texts.map(as_cell, na_action="ignore").to_csv(index=False, lineterminator="\n")


def warnings_of(item: Evaluated) -> list[str]:
    """What weakens the numbers of an evaluation, a sentence each."""
    step = "" if item.result.model.step is None else f", step {item.result.model.step}"
    where = (
        f"{item.model}, {item.method}{step}, {BENCHMARKS[item.result.benchmark]} ({os.path.relpath(item.path.parent)})"
    )
    return [f"{where}: {warning}." for warning in warnings(item.result)]


def _line(texts: Iterator[str]) -> str:
    return f"| {' | '.join(texts)} |\n"


def _markdown_cell(cell: Cell) -> str:
    text = f"**{_plain(cell.text)}**" if cell.bold else _plain(cell.text)
    return f"{text}{cell.mark} {cell.interval_text}".rstrip()


def _values(title: str, cell: Cell) -> Iterator[tuple[str, str | None]]:
    yield title, cell.text if cell.value is None else f"{cell.value:.{SIGNIFICANT_DIGITS}g}"
    for place, end in enumerate(("low", "high")):
        yield f"{title} {end}", f"{cell.interval[place]:.{SIGNIFICANT_DIGITS}g}" if cell.interval else None


def _plain(text: str) -> str:
    """Text that Markdown takes literally where it stands in a table; `_` and `[` stay bare where they mean nothing."""
    text = re.sub(r"([\\`*<|]|\b_|_\b|\[(?=[^\]]*\]\())", r"\\\1", text)
    return " ".join(text.split())

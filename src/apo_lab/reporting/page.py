"""`report.html`: everything that was found, on one page that needs no other file, no script and no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from apo_lab.reporting.figures.canvas import NamedFigure, inline_svg, save
from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import MARK, Evaluated, Evaluations, Table
from apo_lab.reporting.render import DELIMITERS, markdown, template, write_tables
from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.card import warnings


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
    def not_compared(self) -> list[str]:
        """A sentence on `apart`; none where all was measured alike."""
        said = "Measured in different ways, and so not compared with one another: "
        return [f"{said}{' | '.join(self.apart)}. Measure all alike to compare."] if self.apart else []


def write_report(report: Report, folder: Path) -> Path:
    """Write `tables/`, `figures/`, `report.md` and `report.html`, which links to all files; returns its path."""
    paths = [*write_tables(report.tables, folder / "tables")]
    for named in report.figures:
        paths += save(named, folder / "figures")
    files: dict[str, list[str]] = {}
    for path in paths:
        files.setdefault(path.stem, []).append(path.relative_to(folder).as_posix())
    write_atomically(folder / "report.md", markdown_page(report).encode())
    write_atomically(folder / "report.html", page(report, files).encode())
    return folder / "report.html"


def page(report: Report, files: Mapping[str, Sequence[str]] | None = None) -> str:
    """The whole page, as HTML, with links to `files`: name of a table or figure → paths relative to the page."""
    return template("report.html.j2").render(
        report=report,
        files_of=files or {},
        mark=MARK,
        figures=[(figure, Markup(inline_svg(figure))) for figure in report.figures],
        warnings=[*report.not_compared, *warnings_of(report.evaluations.results)],
    )


def markdown_page(report: Report) -> str:
    """The page as Markdown, with the SVG files of `figures/`."""
    tables = [markdown(table) for table in report.tables]
    warnings = [*report.not_compared, *warnings_of(report.evaluations.results)]
    return template("report.md.j2", **DELIMITERS).render(report=report, tables=tables, warnings=warnings)


def warnings_of(evaluations: Sequence[Evaluated]) -> list[str]:
    """What weakens the numbers of evaluations, a sentence each."""
    return [
        f"{item.model}, {item.policy}, {benchmark_name(item.result.benchmark)}: {warning}."
        for item in evaluations
        for warning in warnings(item.result)
    ]

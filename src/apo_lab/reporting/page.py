"""`report.html`: everything that was found, on one page that needs no other file, no script and no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from apo_lab.reporting.figures.canvas import NamedFigure, inline_svg, save
from apo_lab.reporting.identity import HASH_LETTERS, short_hash
from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import MARK, Evaluated, Evaluations, Table, left, right, row_of
from apo_lab.reporting.render import template, write_tables
from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.card import warnings


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The content of the page."""

    title: str
    date: str
    """The date as it is printed: the page never reads a clock."""
    num_runs: int
    tables: Sequence[Table] = ()
    figures: Sequence[NamedFigure] = ()
    evaluations: Evaluations = Evaluations()


def write_report(report: Report, folder: Path) -> Path:
    """Write `tables/`, `figures/` and `report.html`, which links to the files of both; returns the page's path."""
    paths = [*write_tables(report.tables, folder / "tables")]
    for named in report.figures:
        paths += save(named.figure, folder / "figures" / named.name)
    files: dict[str, list[str]] = {}
    for path in paths:
        files.setdefault(path.stem, []).append(path.relative_to(folder).as_posix())
    write_atomically(folder / "report.html", page(report, files).encode())
    return folder / "report.html"


def page(report: Report, files: Mapping[str, Sequence[str]] | None = None) -> str:
    """The whole page, as HTML. The same report gives the same text.

    Args:
        report: what it shows.
        files: name of a table or figure → its files, relative to the page.
    """
    evaluations = report.evaluations.results
    return template("report.html.j2").render(
        report=report,
        files_of=files or {},
        mark=MARK,
        figures=[(figure, Markup(inline_svg(figure.figure, figure.name))) for figure in report.figures],
        warnings=warnings_of(evaluations),
        settings=settings_table(evaluations) if evaluations else None,
    )


def warnings_of(evaluations: Sequence[Evaluated]) -> list[str]:
    """Reasons to doubt the numbers, a sentence each."""
    return [f"{_what(item)}: {warning}." for item in evaluations for warning in warnings(item.result)]


def settings_table(evaluations: Sequence[Evaluated]) -> Table:
    """How each evaluation was made: one row an evaluation."""
    rows = []
    for item in evaluations:
        result, settings = item.result, item.result.settings
        training_seed = item.run.seed if item.run else ""
        cells = (
            f"{result.data.num_problems:,} of {result.data.num_available:,}",
            f"{settings.num_samples}",
            f"{settings.temperature:g}",
            f"{settings.top_p:g}",
            f"{settings.max_completion_tokens:,}",
            settings.engine,
            result.model.dtype,
            training_seed or "–",
            f"{settings.seed}",
            short_hash(settings.prompt),
            result.data.sha256[:HASH_LETTERS],
            result.model.weights_sha256[:HASH_LETTERS],
        )
        rows.append(row_of(item.model, item.policy, benchmark_name(result.benchmark), *cells))
    return Table(
        name="settings",
        title="Settings of the evaluations",
        columns=(
            *left("Model", "Method", "Benchmark"),
            *right("Problems", "Samples", "Temperature", "Top-p", "Token limit", "Engine", "Precision"),
            *right("Training", "Sampling", group="Seed"),
            *right("Prompt", "Data", "Weights", group="SHA-256"),
        ),
        rows=tuple(rows),
        notes=(
            "Problems: measured of available. Samples: completions a problem. "
            f"Hashes: the first {HASH_LETTERS} digits; equal ones mean the same prompt, problems, weights.",
        ),
    )


def _what(item: Evaluated) -> str:
    return f"{item.model}, {item.policy}, {benchmark_name(item.result.benchmark)}"

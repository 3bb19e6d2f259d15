"""`report.html`: everything that was found, on one page that needs no other file, no script and no network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from apo_lab.reporting.figures.canvas import NamedFigure, inline_svg, save
from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import MARK, Evaluated, Evaluations, Table, left, right, row_of
from apo_lab.reporting.render import template, write_tables
from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.card import warnings

HASH_LETTERS = 8


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
        prompts=_prompts(report.evaluations),
    )


def warnings_of(evaluations: Sequence[Evaluated]) -> list[str]:
    """Reasons to doubt the numbers, a sentence each."""
    return [f"{_what(item)}: {warning}." for item in evaluations for warning in warnings(item.result)]


def settings_table(evaluations: Sequence[Evaluated]) -> Table:
    """How each evaluation was made: one row an evaluation."""
    return Table(
        name="settings",
        title="Settings of the evaluations",
        columns=(
            *left("Model", "Method", "Benchmark"),
            *right("Problems", "Samples", "Temperature", "Top-p", "Token limit", "Engine", "Precision"),
            *right("Training", "Sampling", group="Seed"),
            *right("Data", "Weights", group="SHA-256"),
        ),
        rows=tuple(
            row_of(item.model, item.policy, benchmark_name(item.result.benchmark), *_settings(item))
            for item in evaluations
        ),
        notes=(
            "Problems: measured of available. Samples: completions a problem. "
            f"Hashes: the first {HASH_LETTERS} digits; equal ones mean the same problems, the same weights.",
        ),
    )


def _settings(evaluated: Evaluated) -> list[str]:
    result, settings = evaluated.result, evaluated.result.settings
    training_seed = evaluated.run.seed if evaluated.run else result.model.seed
    return [
        f"{result.data.num_problems:,} of {result.data.num_available:,}",
        f"{settings.num_samples}",
        f"{settings.temperature:g}",
        f"{settings.top_p:g}",
        f"{settings.max_completion_tokens:,}",
        settings.engine,
        result.model.dtype,
        "–" if training_seed is None else f"{training_seed}",
        f"{settings.seed}",
        result.data.sha256[:HASH_LETTERS],
        result.model.weights_sha256[:HASH_LETTERS],
    ]


def _prompts(evaluations: Evaluations) -> list[tuple[str, str, str, list[str]]]:
    """Every prompt with its reward and versions, and what was measured with them."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for item in evaluations.results:
        settings = item.result.settings
        found.setdefault((settings.prompt, settings.reward, _versions(item.result.versions)), []).append(_what(item))
    for item in evaluations.coverage:
        key = (item.result.prompt, "", _versions(item.result.versions))
        found.setdefault(key, []).append(f"coverage of {item.model}, {item.method}, on {item.result.preset}")
    return [(*key, names) for key, names in found.items()]


def _what(item: Evaluated) -> str:
    return f"{item.model}, {item.policy}, {benchmark_name(item.result.benchmark)}"


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)

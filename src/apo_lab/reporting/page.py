"""`report.html`: everything that was found, on one page that needs no other file, no script and no network."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from apo_lab.reporting.figures.canvas import inline_svg
from apo_lab.reporting.figures.report import NamedFigure
from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import MARK, Covered, Evaluated, Table, TableRow, left, right, row_of
from apo_lightning.evaluation.card import warnings
from apo_lightning.evaluation.records import EvaluationResult
from apo_lightning.types import VerdictStatus

HASH_LETTERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContents:
    """The content of the page, figures excepted."""

    title: str
    date: str
    """The date as it is printed: the page never reads a clock."""
    num_runs: int
    tables: tuple[Table, ...] = ()
    """The tables in the order of the page; those without a row are left out."""
    evaluations: tuple[Evaluated, ...] = ()
    coverage: tuple[Covered, ...] = ()
    files: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name of a table or figure → its files, relative to the page."""


def template(name: str) -> Template:
    """A template of `templates/`, which escapes all values that it inserts and refuses names that are not given."""
    environment = Environment(
        loader=PackageLoader("apo_lab.reporting"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def page(report: ReportContents, figures: Sequence[NamedFigure] = ()) -> str:
    """The whole page, as HTML. The same contents give the same text."""
    return template("report.html.j2").render(
        report=report,
        mark=MARK,
        tables=[table for table in report.tables if table.rows],
        figures=[(figure, Markup(inline_svg(figure.figure, figure.name))) for figure in figures],
        warnings=warnings_of(report.evaluations),
        measured=[build(report.evaluations) for build in (settings_table, verdict_table) if report.evaluations],
        prompts=_prompts(report.evaluations, report.coverage),
    )


def files_of(paths: Iterable[Path], folder: Path) -> dict[str, tuple[str, ...]]:
    """The files of tables and figures for `ReportContents.files`: stem → paths relative to `folder`.

    Example:
        >>> files_of([Path("report/tables/main.csv"), Path("report/tables/main.tex")], Path("report"))
        {'main': ('tables/main.csv', 'tables/main.tex')}
    """
    found: dict[str, list[str]] = {}
    for path in paths:
        found.setdefault(path.stem, []).append(path.relative_to(folder).as_posix())
    return {stem: tuple(files) for stem, files in found.items()}


def warnings_of(evaluations: Sequence[Evaluated]) -> list[str]:
    """Reasons to doubt the numbers, a sentence each."""
    return [
        f"{evaluated.model}, {evaluated.policy}, {benchmark_name(evaluated.result.benchmark)}: {warning}."
        for evaluated in evaluations
        for warning in warnings(evaluated.result)
    ]


def settings_table(evaluations: Sequence[Evaluated]) -> Table:
    """How each evaluation was made: one row an evaluation."""
    return Table(
        name="settings",
        title="Settings of the evaluations",
        columns=(
            *_WHAT,
            *right("Problems", "Samples", "Temperature", "Top-p", "Token limit", "Engine", "Precision"),
            *right("Training", "Sampling", group="Seed"),
            *right("Data", "Weights", group="SHA-256"),
        ),
        rows=tuple(_row(evaluated, _settings(evaluated)) for evaluated in evaluations),
        notes=(
            "Problems: measured of available. Samples: completions a problem. "
            f"Hashes: the first {HASH_LETTERS} digits; equal ones mean the same problems, the same weights.",
        ),
    )


def verdict_table(evaluations: Sequence[Evaluated]) -> Table:
    """How the samples of each evaluation were judged: one row an evaluation."""
    names = (*(status.capitalize() for status in get_args(VerdictStatus)), "Truncated", "Tokens a sample")
    return Table(
        name="verdicts",
        title="Verdicts on their samples",
        columns=(*_WHAT, *right(*names)),
        rows=tuple(_row(evaluated, _verdicts(evaluated.result)) for evaluated in evaluations),
        notes=("Truncated: cut at the token limit, and judged like any other.",),
    )


_WHAT = left("Model", "Method", "Benchmark")


def _row(evaluated: Evaluated, texts: Sequence[str]) -> TableRow:
    return row_of(evaluated.model, evaluated.policy, benchmark_name(evaluated.result.benchmark), *texts)


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


def _verdicts(result: EvaluationResult) -> list[str]:
    total = max(1, sum(result.verdicts.values()))
    counts = [f"{result.verdicts.get(status, 0):,}" for status in get_args(VerdictStatus)]
    return [*counts, f"{result.num_truncated / total:.1%}", f"{result.num_tokens / total:,.0f}"]


def _prompts(evaluations: Sequence[Evaluated], coverage: Sequence[Covered]) -> list[tuple[str, str, str, list[str]]]:
    """Every prompt with its reward and versions, and what was measured with them."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for item in evaluations:
        key = (item.result.settings.prompt, item.result.settings.reward, _versions(item.result.versions))
        found.setdefault(key, []).append(f"{item.model}, {item.policy}, {benchmark_name(item.result.benchmark)}")
    for item in coverage:
        key = (item.result.prompt, "", _versions(item.result.versions))
        found.setdefault(key, []).append(f"coverage of {item.model}, {item.method}, on {item.result.preset}")
    return [(*key, names) for key, names in found.items()]


def _versions(versions: Mapping[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)

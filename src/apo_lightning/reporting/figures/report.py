"""All figures of a report, named and captioned, from everything that was read."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from apo_lightning.reporting.averages import series_name
from apo_lightning.reporting.axes import Defaults
from apo_lightning.reporting.figures.coverage import coverage_figure
from apo_lightning.reporting.figures.paper import as_measurements, as_recall
from apo_lightning.reporting.figures.pass_at_k import pareto_figure, pareto_points, pass_at_k_figure, shown_methods
from apo_lightning.reporting.figures.sensitivity import sensitivity_figure, sensitivity_panels
from apo_lightning.reporting.figures.training import (
    ENTROPY,
    entropy_figure,
    method_curves,
    runs_by_method,
    training_figure,
    training_panels,
)
from apo_lightning.reporting.names import METHODS
from apo_lightning.reporting.published import published
from apo_lightning.reporting.records import Covered, Measurement, RunCard
from apo_lightning.reporting.style import Style, styles_of
from apo_lightning.reporting.tables.sensitivity import swept_methods

SMOOTHING = (
    "Strong lines: mean over seeds, each smoothed over the last twentieth of its run; bands: smallest to largest seed; "
    "faint lines: runs as logged."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedFigure:
    """A figure and what is said of it."""

    name: str
    """Stem of its files: `pareto`."""
    title: str
    caption: str
    figure: Figure


def report_figures(
    runs: Sequence[RunCard],
    measurements: Sequence[Measurement],
    covered: Sequence[Covered] = (),
    defaults: Defaults | None = None,
) -> list[NamedFigure]:
    """Every figure that there is data for, a method looking the same in each.

    Args:
        runs: the training runs.
        measurements: of evaluations and of the runs' held-out problems.
        covered: coverage of worked solutions.
        defaults: as in `axes.settings`; the same as `measurements` was given.
    """
    paper = as_measurements(published("main_results"))
    by_model = runs_by_method(runs, defaults)
    names = [series_name(item) for item in (*measurements, *paper)]
    styles = styles_of([*names, *(method for methods in by_model.values() for method in methods)])
    figures = [*_evaluated(measurements, paper, styles), *_swept(measurements, defaults or {})]
    for model, methods in by_model.items():
        suffix = f"_{_stem(model)}" if len(by_model) > 1 else ""
        if method_curves(methods, ENTROPY):
            figure = entropy_figure(methods, styles)
            figures.append(_named(f"entropy{suffix}", f"Token entropy, {model}", SMOOTHING, figure))
        if training_panels(methods):
            figure = training_figure(methods, styles)
            figures.append(_named(f"training{suffix}", f"Training, {model}", SMOOTHING, figure))
    if covered:
        caption = (
            "Share of the tokens of worked solutions that are among the K most likely ones of the model, the solution "
            "so far given; bands: 95 % intervals over problems. Hollow: published."
        )
        figure = coverage_figure(covered, as_recall(published("coverage")))
        figures.append(_named("oracle_coverage", "Oracle coverage", caption, figure))
    return figures


def _evaluated(
    measurements: Sequence[Measurement], paper: Sequence[Measurement], styles: dict[str, Style]
) -> Iterator[NamedFigure]:
    if pareto_points(measurements):
        caption = (
            "Pass@1 against Pass@K, means over the benchmarks that all methods of a model have; crosses: 95 % "
            "intervals. Hollow: published. The dashed arrow marks a gain of Pass@1 that is paid for with Pass@K."
        )
        figure = pareto_figure(measurements, styles, published=paper)
        yield _named("pareto", "Efficiency against coverage", caption, figure)
    if any(item.pass_at_k for item in shown_methods(measurements)):
        caption = "pass@k against k, unbiased; bands: 95 % intervals over problems."
        yield _named("pass_at_k", "What more samples buy", caption, pass_at_k_figure(measurements, styles))


def _swept(measurements: Sequence[Measurement], defaults: Defaults) -> Iterator[NamedFigure]:
    paper = as_measurements(published("sensitivity"))
    swept = swept_methods(measurements)
    for model, method in swept:
        usual = next((defaults[algo] for algo, name in METHODS.items() if name == method and algo in defaults), {})
        theirs = [item for item in paper if item.benchmark in {ours.benchmark for ours in measurements}]
        panels = sensitivity_panels(measurements, model=model, method=method, defaults=usual, published=theirs)
        if panels:
            suffix = f"_{_stem(model)}_{_stem(method)}" if len(swept) > 1 else ""
            caption = (
                "Mean over benchmarks with 95 % intervals, one setting varied at a time; star: the default. "
                "Hollow: published."
            )
            figure = sensitivity_figure(panels)
            yield _named(f"sensitivity{suffix}", f"Sensitivity of {method} on {model}", caption, figure)


def _named(name: str, title: str, caption: str, figure: Figure) -> NamedFigure:
    return NamedFigure(name=name, title=title, caption=caption, figure=figure)


def _stem(name: str) -> str:
    """A printed name as part of a file name."""
    return "".join(letter if letter.isalnum() else "_" for letter in name.lower()).strip("_")

"""All figures of a report, named and captioned, from everything that was read."""

from collections.abc import Iterator, Mapping, Sequence

from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.figures.canvas import NamedFigure
from apo_lab.reporting.figures.evaluations import (
    pareto_figure,
    pareto_points,
    pass_at_k_figure,
    sensitivity_figure,
    sensitivity_points,
)
from apo_lab.reporting.figures.training import curve_panels, curves_figure
from apo_lab.reporting.names import algo_of, slug
from apo_lab.reporting.published import as_measurements, published
from apo_lab.reporting.records import Measurement, RunCard
from apo_lab.reporting.runs import RunsByMethod, runs_by_method
from apo_lab.reporting.style import Style, styles_of
from apo_lab.reporting.tables.accuracies import swept_methods
from apo_lab.reporting.tables.series import INTERVALS, evaluated

SMOOTHING = (
    "Strong lines: mean over seeds, each smoothed over the last twentieth of its run; bands: smallest to largest seed; "
    "faint lines: runs as logged. Training seeds: "
)
PANELS = {
    "entropy": ("Token entropy", ""),
    "training": (
        "Training",
        "Exact pass@k: summed over all completions, on the run's own held-out problems; evaluations estimate it from "
        "samples, on theirs. ",
    ),
    "collapse": (
        "Snapshots along training",
        "The same sample seeds at every step. Dotted: the model before training. ",
    ),
    "monitors": (
        "Diagnostics",
        "Dotted: 0 of a difference or a count, the alarm's threshold, or else the first logged value, of the base. ",
    ),
}
"""Figures of panels: title and what their captions begin with."""


def report_figures(
    runs: Sequence[RunCard],
    measurements: Sequence[Measurement],
    defaults: Defaults | None = None,
) -> list[NamedFigure]:
    """Every figure that there is data for, from `evaluations.with_snapshots` and `measurements` with the same defaults.

    A method has the same style in each.
    """
    paper = as_measurements(published("main_results"))
    by_model = runs_by_method(runs, defaults)
    names = {item.name for item in (*measurements, *paper)}
    styles = styles_of(names.union(*by_model.values()))
    return [
        *_evaluated(measurements, paper, styles),
        *_swept(measurements, defaults or {}),
        *_logged(by_model, styles),
    ]


def _evaluated(
    measurements: Sequence[Measurement], paper: Sequence[Measurement], styles: dict[str, Style]
) -> Iterator[NamedFigure]:
    if pareto_points(measurements):
        caption = (
            "Pass@1 against Pass@K, means over the benchmarks that all methods of a panel have; crosses: "
            f"{INTERVALS}. A dashed arrow is a gain in Pass@1 with a loss in Pass@K, from the base model to GRPO; a "
            "solid one is a gain in Pass@K, from GRPO to APO."
        )
        figure = pareto_figure(measurements, styles, published=paper)
        yield NamedFigure("pareto", "Efficiency against coverage", caption, figure)
    if any(item.pass_at_k for item in evaluated(measurements)):
        caption = f"pass@k against k, unbiased; bands: {INTERVALS}."
        yield NamedFigure("pass_at_k", "pass@k against k", caption, pass_at_k_figure(measurements, styles))


def _swept(measurements: Sequence[Measurement], defaults: Defaults) -> Iterator[NamedFigure]:
    benchmarks = {item.benchmark for item in measurements}
    paper = [item for item in as_measurements(published("sensitivity")) if item.benchmark in benchmarks]
    models = {item.block: item.model for item in measurements}
    swept = swept_methods(measurements)
    for block, method in swept:
        usual = defaults.get(algo_of(method), {})
        if ours := sensitivity_points(measurements, block, method, usual):
            figure = sensitivity_figure(ours, sensitivity_points(paper, models[block], method, usual), usual)
            suffix = f"_{slug(block)}_{slug(method)}" if len(swept) > 1 else ""
            caption = (
                f"Mean over benchmarks, one setting varied at a time; vertical lines: {INTERVALS}. Star: the default."
            )
            yield NamedFigure(f"sensitivity{suffix}", f"Sensitivity of {method} on {block}", caption, figure)


def _logged(by_model: Mapping[str, RunsByMethod], styles: dict[str, Style]) -> Iterator[NamedFigure]:
    for model, methods in by_model.items():
        suffix = f"_{slug(model)}" if len(by_model) > 1 else ""
        seeds = ", ".join(f"{method} {len(runs)}" for method, runs in methods.items())
        for name, (title, begin) in PANELS.items():
            if shown := curve_panels(methods, name):
                caption, figure = f"{begin}{SMOOTHING}{seeds}.", curves_figure(shown, styles)
                yield NamedFigure(f"{name}{suffix}", f"{title}, {model}", caption, figure)

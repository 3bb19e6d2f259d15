"""All figures of a report, named and captioned, from everything that was read."""

from collections.abc import Iterator, Mapping, Sequence

from apo_lab.reporting.axes import Defaults
from apo_lab.reporting.figures.canvas import NamedFigure
from apo_lab.reporting.figures.pass_at_k import (
    pareto_arrows,
    pareto_figure,
    pareto_points,
    pass_at_k_figure,
    shown_methods,
)
from apo_lab.reporting.figures.sensitivity import sensitivity_figure, sensitivity_points
from apo_lab.reporting.figures.training import (
    ENTROPY,
    curve_panels,
    curves_figure,
    entropy_figure,
    method_curves,
)
from apo_lab.reporting.names import algo_of, slug
from apo_lab.reporting.published import as_measurements, published
from apo_lab.reporting.records import Measurement, RunCard
from apo_lab.reporting.runs import RunsByMethod, runs_by_method
from apo_lab.reporting.style import Style, styles_of
from apo_lab.reporting.tables.sensitivity import swept_methods
from apo_lab.reporting.tables.series import INTERVALS

SMOOTHING = (
    "Strong lines: mean over seeds, each smoothed over the last twentieth of its run; bands: smallest to largest seed; "
    "faint lines: runs as logged. Training seeds: "
)
PANELS = {
    "training": ("Training", ""),
    "collapse": (
        "Snapshots along training",
        "The same sample seeds at every step; the band of a single seed is its 95 % interval over problems. Dotted: "
        "the model before training. ",
    ),
    "monitors": (
        "Diagnostics",
        "Dotted: 0 of a difference or a count, the alarm's threshold, or else the first logged value, of the base. ",
    ),
}
"""Figures of panels: title and what their captions begin with."""
EXACT = (
    "Exact pass@k: the probability that k samples have a right one, summed over all completions, on the run's own "
    "held-out problems; the tables of evaluations estimate it from samples, on theirs. "
)
ARROW_CAPTIONS = {
    "diversity collapse": "Dashed arrow: a gain in Pass@1 with a loss in Pass@K, from the base model to GRPO.",
    "recovery": "Solid arrow: a gain in Pass@K, from GRPO to APO.",
}


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
    if points := pareto_points(measurements):
        by_block = [[point for point in points if point.block == block] for block in {p.block for p in points}]
        drawn = set().union(*map(pareto_arrows, by_block))
        caption = " ".join(
            [
                "Pass@1 against Pass@K, means over the benchmarks that all methods of a panel have; "
                f"crosses: {INTERVALS}.",
                *(text for name, text in ARROW_CAPTIONS.items() if name in drawn),
            ]
        )
        figure = pareto_figure(measurements, styles, published=paper)
        yield NamedFigure("pareto", "Efficiency against coverage", caption, figure)
    if any(item.pass_at_k for item in shown_methods(measurements)):
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
        caption = SMOOTHING + ", ".join(f"{method} {len(runs)}" for method, runs in methods.items()) + "."
        if method_curves(methods, ENTROPY):
            yield NamedFigure(f"entropy{suffix}", f"Token entropy, {model}", caption, entropy_figure(methods, styles))
        for name, (title, begin) in PANELS.items():
            if shown := curve_panels(methods, name):
                exact = EXACT if any(panel.title.startswith("Exact") for panel in shown) else ""
                figure = curves_figure(shown, styles)
                yield NamedFigure(f"{name}{suffix}", f"{title}, {model}", begin + exact + caption, figure)

"""All figures of a report, named and captioned; metrics of training runs against the step, a line a setting."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apo_report.figures.canvas import NamedFigure, draw_band, method_legend, panels, styled
from apo_report.figures.evaluations import (
    pareto_arrows,
    pareto_figure,
    pareto_points,
    pass_at_k_figure,
    sensitivity_figure,
    sensitivity_points,
)
from apo_report.names import BENCHMARKS, algo_of, data_rows, in_order, slug
from apo_report.published import as_measurements, published
from apo_report.records import Measurement, RunCard
from apo_report.runs import Defaults, RunsByMethod, grouped, runs_by_method
from apo_report.style import QUIET, UNNAMED, Style, styles_of
from apo_report.tables.accuracies import swept_methods
from apo_report.tables.series import EXACT, INTERVALS, common_benchmarks, evaluated, series_of, unevaluated_note

SMOOTHING = "smoothed over the last twentieth of the run"
PANELS = {
    "entropy": ("Token entropy", ""),
    "training": ("Training", ""),
    "collapse": (
        "Snapshots along training",
        "The same sample seeds at every step. Dotted: the model before training. ",
    ),
    "monitors": (
        "Diagnostics",
        "Dotted: 0 of a difference or a count, or else the first logged value, of the base. ",
    ),
}
"""Figures of panels: title and what their captions begin with."""
MOST_LINES = 8
"""A figure of settings has no more names than this."""
ARROWS_SAID = {
    "diversity collapse": " Dashed arrow: a gain in Pass@1 with a loss in Pass@K, from the base model to GRPO.",
    "recovery": " Solid arrow: a gain in Pass@K, from GRPO to APO.",
}
"""What captions say of the arrows of the Pareto figure."""
WINDOWS_PER_RUN = 20
"""Lines are smoothed over a twentieth of the run."""


def report_figures(
    runs: Sequence[RunCard], measurements: Sequence[Measurement], defaults: Defaults | None = None
) -> list[NamedFigure]:
    """Every figure that there is data for, from `evaluations.with_snapshots` and `measurements` with the same defaults.

    A method has the same style in each.
    """
    paper = as_measurements(published("main_results"))
    by_model = runs_by_method(runs, defaults)
    names = {item.name for item in (*measurements, *paper)}
    styles = styles_of(names.union(*by_model.values()))
    return [*_evaluated(measurements, paper, styles), *_swept(measurements, defaults or {}), *_logged(by_model, styles)]


class MethodCurve(NamedTuple):
    """One metric of one method and setting over its seeds."""

    method: str
    logged: Sequence[pd.Series]
    """Values by step of each run, as logged."""
    smoothed: pd.DataFrame
    """Smoothed values of the steps that every seed has: a row a step, a column a seed."""


class CurvePanel(NamedTuple):
    """One metric of all methods."""

    title: str
    curves: Sequence[MethodCurve]
    reference: float
    """Height of the dotted line; NaN: none."""


def method_curves(runs: RunsByMethod, key: str) -> list[MethodCurve]:
    """The metric `key` of each method that logged it, smoothed.

    Smoothed value at a step: mean of the values logged up to it, over a window of a twentieth of the run (one value
    at least).
    """
    curves = []
    for method, group in runs.items():
        if logged := [pd.Series(run.metrics[key]).dropna() for run in group if key in run.metrics]:
            smooth: list[Any] = [
                each.rolling(max(1, len(each) // WINDOWS_PER_RUN), min_periods=1).mean() for each in logged
            ]
            curves.append(MethodCurve(method, logged, pd.concat(smooth, axis=1, join="inner")))
    return curves


def curve_panels(runs: RunsByMethod, figure: str) -> list[CurvePanel]:
    """A panel for each key that some run logged and that matches a pattern of a figure in `panels.csv`.

    That file has a pattern of metric keys, the title with the pattern's groups, and the dotted line: at zero, the first
    logged value, of the base, or none.
    """
    every = [run for group in runs.values() for run in group]
    keys = {key for run in every for key in run.metrics}
    found = []
    for row in (row for row in data_rows("figures/panels.csv") if row["figure"] == figure):
        matches = [match for key in keys if (match := re.fullmatch(row["pattern"], key))]
        # Numbers by size: 8 before 16.
        for match in sorted(matches, key=lambda m: [(len(g) if g.isdecimal() else 0, g) for g in m.groups()]):
            reference = _reference(every, match[0], row["reference"])
            found.append(CurvePanel(row["title"].format(*match.groups()), method_curves(runs, match[0]), reference))
    return found


@styled
def curves_figure(shown: Sequence[CurvePanel], styles: Mapping[str, Style]) -> Figure:
    """Small multiples of logged metrics, a line a method.

    Strong lines: mean over a method's seeds, smoothed over a twentieth of the run; bands: smallest to largest seed;
    faint lines: every run as logged. The panel of `train/entropy` alone is the paper's figure of it.

    Source: APO paper, figure "Evolution of Token Entropy".
    """
    figure, grid = panels(len(shown), height=1.75)
    for axes, panel in zip(grid, shown, strict=True):
        if math.isfinite(panel.reference):
            axes.axhline(panel.reference, color=QUIET, linestyle=":", linewidth=1, zorder=2)
        for method, logged, smoothed in panel.curves:
            for each in logged:
                axes.plot(each, color=styles[method].color, alpha=0.18, linewidth=0.5, zorder=1)
            if len(smoothed):
                y = np.stack([smoothed.mean(axis=1), smoothed.min(axis=1), smoothed.max(axis=1)])
                draw_band(axes, smoothed.index, y, styles[method], markevery=max(1, len(smoothed) // 6))
        axes.set_title(panel.title)
        axes.set_xlabel("training step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    method_legend(figure, styles, {curve.method for panel in shown for curve in panel.curves})
    return figure


def _evaluated(
    measurements: Sequence[Measurement], paper: Sequence[Measurement], styles: dict[str, Style]
) -> Iterator[NamedFigure]:
    chosen = evaluated(measurements)
    if points := pareto_points(measurements):
        arrows = {name for block in grouped(points, lambda point: point.block) for name in pareto_arrows(block)}
        is_mean = len({item.benchmark for item in chosen}) > 1
        means = ", means over the benchmarks that all methods of a panel have" * is_mean
        said = "".join(text for name, text in ARROWS_SAID.items() if name in arrows)
        caption = f"Pass@1 against Pass@K{means}; crosses: {INTERVALS}.{said}"
        figure = pareto_figure(measurements, styles, published=paper)
        yield NamedFigure("pareto", "Efficiency against coverage", caption, figure)
    if any(item.pass_at_k for item in chosen):
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
            items = series_of(measurements, block, method)
            over = ", ".join(BENCHMARKS[name] for name in in_order(common_benchmarks(items)[block], BENCHMARKS))
            star = " Star: the default." * any(usual.get(key, "default") in points for key, points in ours.items())
            intervals = f"; vertical lines: {INTERVALS}" * (not over.endswith(", exact"))
            left = unevaluated_note(measurements, items)
            caption = " ".join((f"Mean over {over}, one setting varied at a time{intervals}.{star}", *left))
            yield NamedFigure(f"sensitivity{suffix}", f"Sensitivity of {method} on {block}", caption, figure)


def _logged(by_model: Mapping[str, RunsByMethod], styles: Mapping[str, Style]) -> Iterator[NamedFigure]:
    for model, every in by_model.items():
        for method, runs in _drawn_together(every).items():
            suffix = f"_{slug(model)}" * (len(by_model) > 1) + f"_{slug(method)}" * bool(method)
            place = f"{model}, settings of {method}" if method else model
            looks, remark = _looks(runs, styles)
            if not method and len(runs) < len(every):
                remark = f"More than {MOST_LINES} settings: those of a swept method have a figure of their own. "
            for name, (title, begin) in PANELS.items():
                if shown := curve_panels(runs, name):
                    exact = f"{EXACT} " if any(panel.title.startswith("Exact") for panel in shown) else ""
                    caption = f"{remark}{begin}{exact}{_strong_lines(runs)}"
                    yield NamedFigure(f"{name}{suffix}", f"{title}, {place}", caption, curves_figure(shown, looks))


def _strong_lines(methods: RunsByMethod) -> str:
    """What lines and bands are."""
    counts = sorted({len(group) for group in methods.values()})
    if counts == [1]:
        return f"Strong lines: {SMOOTHING}; faint lines: runs as logged."
    return (
        f"Strong lines: mean over seeds, each {SMOOTHING}; bands: smallest to largest seed; faint lines: runs as "
        f"logged. Training seeds: {' to '.join(map(str, sorted({counts[0], counts[-1]})))}."
    )


def _drawn_together(methods: RunsByMethod) -> dict[str, RunsByMethod]:
    """All in one figure; where that is too much, the methods side by side, then by method the settings of each."""
    by_label: dict[str, dict[str, Sequence[RunCard]]] = defaultdict(dict)
    for name, runs in methods.items():
        by_label[runs[0].label][name] = runs
    if len(methods) <= MOST_LINES or len(by_label) == 1:
        return {"": methods}
    swept = {label: of_label for label, of_label in by_label.items() if len(of_label) > 1}
    side_by_side = {name: runs for name, runs in methods.items() if name in by_label or runs[0].label not in swept}
    return {"": side_by_side, **swept}


def _looks(methods: RunsByMethod, styles: Mapping[str, Style]) -> tuple[Mapping[str, Style], str]:
    """Styles in the order of the methods; of too many settings of one, those between are grey, as the caption says."""
    names = list(methods)
    if len(names) <= MOST_LINES or len({runs[0].label for runs in methods.values()}) > 1:
        return {name: styles[name] for name in names}, ""
    # The first, which is the default where it was run, then even steps through the others from end to end.
    steps = [1 + round(place * (len(names) - 2) / (MOST_LINES - 2)) for place in range(MOST_LINES - 1)]
    chosen = [names[place] for place in (0, *steps)]
    own = styles_of(chosen)
    remark = f"{MOST_LINES} of {len(names)} settings are named, in even steps through their order; grey: the others. "
    return {name: own[name] for name in chosen} | {name: UNNAMED for name in names if name not in own}, remark


def _reference(runs: Sequence[RunCard], key: str, kind: str) -> float:
    if kind == "base":
        first = [run.metrics[key].dropna().iloc[0] for run in runs if key in run.metrics]
        return sum(first) / len(first)
    return 0.0 if kind == "zero" else math.nan

"""Metrics of training runs and of their diagnostics against the step, a line a method."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apo_lab.reporting.figures.canvas import draw_band, method_legend, panels, styled
from apo_lab.reporting.names import data_rows
from apo_lab.reporting.records import RunCard
from apo_lab.reporting.runs import RunsByMethod
from apo_lab.reporting.style import QUIET, Style

WINDOWS_PER_RUN = 20
"""Lines are smoothed over a twentieth of the run."""
THRESHOLD = "callbacks.collapse_alarm.threshold"


class MethodCurve(NamedTuple):
    """One metric of one method over its seeds."""

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
    logged value, of the base, the alarm's threshold, or none.
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


def _reference(runs: Sequence[RunCard], key: str, kind: str) -> float:
    if kind == "base":
        first = [run.metrics[key].dropna().iloc[0] for run in runs if key in run.metrics]
        return sum(first) / len(first)
    if kind == "threshold":
        return float(next((run.config[THRESHOLD] for run in runs if THRESHOLD in run.config), math.nan))
    return 0.0 if kind == "zero" else math.nan

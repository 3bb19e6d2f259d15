"""Metrics of training runs and of their diagnostics against the step, a line a method."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.axes import Defaults, settings
from apo_lab.reporting.axes import axes as swept_axes
from apo_lab.reporting.figures.canvas import EndLabel, count_steps, draw_band, label_ends, method_legend, panels, styled
from apo_lab.reporting.names import MODELS, in_order, model_name, variant_name
from apo_lab.reporting.records import RunCard
from apo_lab.reporting.style import QUIET, Style

WINDOWS_PER_RUN = 20
"""Lines are smoothed over a twentieth of the run."""
ENTROPY = "train/entropy"
TRAINING = (
    ("train/reward", "Reward", "none"),
    ("train/pass@1", "Pass@1, training prompts", "none"),
    (r"train/pass@(?!1$)(\d+)", "Pass@{}, training prompts", "none"),
    ("support/coverage_correct", "Support coverage, correct", "none"),
    ("support/coverage_incorrect", "Support coverage, incorrect", "none"),
    (ENTROPY, "Token entropy [nats]", "none"),
)
DIAGNOSTICS = (
    ("squeeze/index_difference", "Squeezing index, error − control", "zero"),
    ("squeeze/share_tail_difference", "Tail's share, error − control", "zero"),
    ("history/net_recovered", "Prompts recovered − lost", "zero"),
    (r"history/distinct_answers@(\d+)", "Distinct answers in {}", "base"),
    ("history/missing_mass", "Mass of answers not seen", "base"),
    ("alarm/entropy_cusum", "Fall of log entropy, CUSUM [sd]", "threshold"),
    ("reach/correct_outside", "Correct, outside T$_K$", "base"),
    ("recovery/survival_path_right", "Right alternatives never lost", "none"),
    ("recovery/selectivity_verdict", "Rise, right − wrong [nats]", "zero"),
    ("recovery/selectivity_rank", "Rise, T$_K$ − the next K [nats]", "zero"),
    ("geometry/logits/cos_push_pull", "cos(push, pull)", "zero"),
    ("geometry/logits/cancelled", "Cancelled share of the terms", "none"),
    ("geometry/logits/align_push_anchors", "cos(push, ∇ of Σ$_S$ π)", "zero"),
    ("geometry/logits/align_pull_anchors", "cos(pull, ∇ of Σ$_S$ π)", "zero"),
    ("geometry/outside_after", "Tokens out of trust region", "none"),
    ("geometry/anchor_outside_after", "Anchors out of trust region", "none"),
    ("alarm/([^/]+)/num_lost", "Problems lost, {}", "zero"),
)
"""A pattern of metric keys, the panel's title with the pattern's group, and the dotted line: 0, the first logged value,
the alarm's threshold, or none."""
THRESHOLD = "callbacks.collapse_alarm.threshold"

RunsByMethod = Mapping[str, Sequence[RunCard]]
"""Printed method → its runs, which differ in their seed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodCurve:
    """One metric of one method over its seeds."""

    method: str
    logged: Sequence[pd.Series]
    """Values by step of each run, as logged."""
    smoothed: pd.DataFrame
    """Smoothed values of the steps that every seed has: a row a step, a column a seed."""


def runs_by_method(runs: Sequence[RunCard], defaults: Defaults | None = None) -> dict[str, RunsByMethod]:
    """The runs of each model by method, under printed names.

    Runs that leave their method's defaults are named after what they change, and left out where the method has a
    run that does not: a sweep belongs into the sensitivity figure.
    """
    keys = swept_axes(runs, defaults)
    departures = [settings(run, keys, defaults) for run in runs]
    plain = {(run.model, run.algo) for run, changed in zip(runs, departures, strict=True) if not changed}
    found: dict[str, dict[str, list[RunCard]]] = {}
    for run, changed in zip(runs, departures, strict=True):
        if not changed or (run.model, run.algo) not in plain:
            group = found.setdefault(model_name(run.model), {})
            group.setdefault(variant_name(run.label, changed), []).append(run)
    return {model: found[model] for model in in_order(found, MODELS.values())}


def method_curves(runs: RunsByMethod, key: str) -> list[MethodCurve]:
    """The metric `key` of each method that logged it, smoothed.

    Smoothed value at a step: mean of the values logged up to it, over a window of a twentieth of the run (one value
    at least).
    """
    curves = []
    for method, group in runs.items():
        if logged := [run.metrics[key].dropna() for run in group if key in run.metrics]:
            smooth = [each.rolling(max(1, len(each) // WINDOWS_PER_RUN), min_periods=1).mean() for each in logged]
            curves.append(MethodCurve(method=method, logged=logged, smoothed=pd.concat(smooth, axis=1, join="inner")))
    return curves


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePanel:
    """One metric of all methods."""

    title: str
    curves: Sequence[MethodCurve]
    reference: float
    """Height of the dotted line; NaN: none."""


def curve_panels(runs: RunsByMethod, wanted: Sequence[tuple[str, str, str]]) -> list[CurvePanel]:
    """A panel for each key that some run logged and that matches a pattern of `TRAINING` or `DIAGNOSTICS`."""
    every = [run for group in runs.values() for run in group]
    keys = {key for run in every for key in run.metrics}
    found = []
    for pattern, title, kind in wanted:
        matches = [match for key in keys if (match := re.fullmatch(pattern, key))]
        # Numbers by size: 8 before 16.
        for match in sorted(matches, key=lambda m: [(len(g) if g.isdecimal() else 0, g) for g in m.groups()]):
            curves, reference = method_curves(runs, match[0]), _reference(every, match[0], kind)
            found.append(CurvePanel(title=title.format(*match.groups()), curves=curves, reference=reference))
    return found


def _reference(runs: Sequence[RunCard], key: str, kind: str) -> float:
    if kind == "base":
        first = [run.metrics[key].dropna().iloc[0] for run in runs if key in run.metrics]
        return sum(first) / len(first)
    if kind == "threshold":
        return float(next((run.config[THRESHOLD] for run in runs if THRESHOLD in run.config), math.nan))
    return 0.0 if kind == "zero" else math.nan


@styled
def entropy_figure(runs: RunsByMethod, styles: Mapping[str, Style]) -> Figure:
    """Mean token entropy of the policy against the training step.

    Strong lines: mean over a method's seeds, smoothed over a twentieth of the run; bands: smallest to largest seed;
    faint lines: every run as logged.

    Source: APO paper, figure "Evolution of Token Entropy".
    """
    figure, (axes,) = panels(1, height=2.0)
    labels = draw_curves(axes, method_curves(runs, ENTROPY), styles)
    axes.set_title("Token entropy of the policy")
    axes.set_ylabel("entropy [nats]")
    axes.set_ylim(bottom=0, top=1.06 * axes.get_ylim()[1])
    count_steps(axes)
    label_ends(axes, labels)
    return figure


@styled
def curves_figure(shown: Sequence[CurvePanel], styles: Mapping[str, Style]) -> Figure:
    """Small multiples of logged metrics, a line a method; lines, bands and faint lines as in `entropy_figure`."""
    figure, grid = panels(len(shown), height=1.75)
    for axes, panel in zip(grid, shown, strict=True):
        if math.isfinite(panel.reference):
            axes.axhline(panel.reference, color=QUIET, linestyle=":", linewidth=1, zorder=2)
        draw_curves(axes, panel.curves, styles)
        axes.set_title(panel.title)
        count_steps(axes)
    method_legend(figure, styles, {curve.method for panel in shown for curve in panel.curves})
    return figure


def draw_curves(axes: Axes, curves: Sequence[MethodCurve], styles: Mapping[str, Style]) -> list[EndLabel]:
    """Lines, bands and faint lines as in `entropy_figure`; returns where the lines end."""
    labels = []
    for curve in curves:
        style, table = styles[curve.method], curve.smoothed
        for logged in curve.logged:
            axes.plot(logged, color=style.color, alpha=0.18, linewidth=0.5, zorder=1)
        if len(table):
            y = np.array([table.mean(axis=1), table.min(axis=1), table.max(axis=1)])
            labels.append(draw_band(axes, table.index, y, style, markevery=max(1, len(table) // 6)))
    return labels

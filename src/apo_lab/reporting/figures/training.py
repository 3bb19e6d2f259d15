"""Metrics of training runs and of their diagnostics against the step, a line a method."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.averages import variant_name
from apo_lab.reporting.axes import Defaults, settings
from apo_lab.reporting.axes import axes as swept_axes
from apo_lab.reporting.figures.canvas import EndLabel, count_steps, label_ends, method_legend, panels, styled
from apo_lab.reporting.names import in_model_order, model_name
from apo_lab.reporting.records import RunCard
from apo_lab.reporting.style import COLUMN_INCHES, QUIET, Style
from apo_lightning.common.formatting import moving_mean

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
    seeds: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...]
    """Steps and values of each run, as logged."""
    steps: tuple[float, ...]
    """The steps that every seed has."""
    mean: tuple[float, ...]
    """The mean over seeds of the smoothed values."""
    low: tuple[float, ...]
    high: tuple[float, ...]
    """Smallest and largest over seeds, of the smoothed values."""


def runs_by_method(runs: Sequence[RunCard], defaults: Defaults | None = None) -> dict[str, RunsByMethod]:
    """The runs of each model by method, under printed names.

    Runs that leave their method's defaults are named after what they change, and left out where the method has a
    run that does not: a sweep belongs into the sensitivity figure.

    Args:
        runs: of any model, method and seed.
        defaults: as in `axes.settings`.
    """
    keys = swept_axes(runs, defaults)
    departures = [settings(run, keys, defaults) for run in runs]
    plain = {(run.model, run.algo) for run, changed in zip(runs, departures, strict=True) if not changed}
    found: dict[str, dict[str, list[RunCard]]] = {}
    for run, changed in zip(runs, departures, strict=True):
        if not changed or (run.model, run.algo) not in plain:
            group = found.setdefault(model_name(run.model), {})
            group.setdefault(variant_name(run.label, changed), []).append(run)
    return {model: found[model] for model in in_model_order(found)}


def method_curves(runs: RunsByMethod, key: str) -> list[MethodCurve]:
    """The metric `key` of each method that logged it, smoothed and reduced over seeds.

    Smoothed value at a step: mean of the values logged up to it, over a window of a twentieth of the run (one value
    at least). Mean and range over seeds are of the steps that all of them have.
    """
    seeds = {method: [run.metrics[key] for run in group if key in run.metrics] for method, group in runs.items()}
    return [_over_seeds(method, logged) for method, logged in seeds.items() if logged]


def _over_seeds(method: str, seeds: Sequence[tuple[tuple[float, ...], tuple[float, ...]]]) -> MethodCurve:
    smoothed = []
    for steps, values in seeds:
        window = max(1, len(values) // WINDOWS_PER_RUN)
        smoothed.append(dict(zip(steps, moving_mean(values, window), strict=True)))
    common = sorted(set.intersection(*(set(curve) for curve in smoothed)))
    table = np.array([[curve[step] for step in common] for curve in smoothed])
    return MethodCurve(
        method=method,
        seeds=tuple(seeds),
        steps=tuple(common),
        mean=tuple(table.mean(0).tolist()),
        low=tuple(table.min(0).tolist()),
        high=tuple(table.max(0).tolist()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePanel:
    """One metric of all methods."""

    title: str
    curves: Sequence[MethodCurve]
    reference: float
    """Height of the dotted line; NaN: none."""


def curve_panels(runs: RunsByMethod, wanted: Sequence[tuple[str, str, str]]) -> list[CurvePanel]:
    """A panel for each key that some run logged and that matches a pattern of `TRAINING` or `DIAGNOSTICS`."""
    return [
        CurvePanel(
            title=title.format(*match.groups()),
            curves=method_curves(runs, match[0]),
            reference=_reference(runs, match[0], kind),
        )
        for pattern, title, kind in wanted
        for match in _matches(runs, pattern)
    ]


def _matches(runs: RunsByMethod, pattern: str) -> Iterator[re.Match[str]]:
    """The logged keys that match; numbers by size: 8 before 16."""
    keys = {key for group in runs.values() for run in group for key in run.metrics}
    found = [match for key in keys if (match := re.fullmatch(pattern, key))]
    return iter(sorted(found, key=lambda match: [(len(g) if g.isdecimal() else 0, g) for g in match.groups()]))


def _reference(runs: RunsByMethod, key: str, kind: str) -> float:
    everything = [run for group in runs.values() for run in group]
    if kind == "base":
        first = [run.metrics[key][1][0] for run in everything if key in run.metrics]
        return sum(first) / len(first)
    if kind == "threshold":
        return float(next((run.config[THRESHOLD] for run in everything if THRESHOLD in run.config), math.nan))
    return 0.0 if kind == "zero" else math.nan


@styled
def entropy_figure(runs: RunsByMethod, styles: Mapping[str, Style]) -> Figure:
    """Mean token entropy of the policy against the training step.

    Strong lines: mean over a method's seeds, smoothed over a twentieth of the run; bands: smallest to largest seed;
    faint lines: every run as logged.

    Source: APO paper, figure "Evolution of Token Entropy".
    """
    figure = Figure(figsize=(COLUMN_INCHES, 2.3))
    axes = figure.subplots()
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
    ends = []
    for curve in curves:
        style = styles[curve.method]
        for steps, values in curve.seeds:
            axes.plot(steps, values, color=style.color, alpha=0.18, linewidth=0.5, zorder=1)
        if len(curve.seeds) > 1:
            axes.fill_between(curve.steps, curve.low, curve.high, color=style.color, alpha=0.15, linewidth=0, zorder=2)
        axes.plot(
            curve.steps,
            curve.mean,
            **style.marked_line,
            markevery=max(1, len(curve.steps) // 6),
            markersize=3.5,
            zorder=3 + style.rank,
        )
        if curve.steps:
            ends.append(EndLabel(text=style.label, x=curve.steps[-1], y=curve.mean[-1], color=style.color))
    return ends

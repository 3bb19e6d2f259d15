"""How training went: entropy, reward, pass@k and support coverage against the step, a line a method."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.averages import variant_name
from apo_lab.reporting.axes import Defaults, settings
from apo_lab.reporting.axes import axes as swept_axes
from apo_lab.reporting.figures.canvas import EndLabel, count_steps, label_ends, method_legend, panels, say_empty, styled
from apo_lab.reporting.names import in_model_order, model_name
from apo_lab.reporting.records import RunCard
from apo_lab.reporting.style import COLUMN_INCHES, PAGE_INCHES, Style
from apo_lightning.common.formatting import moving_mean

WINDOWS_PER_RUN = 20
"""Lines are smoothed over a twentieth of the run."""
ENTROPY = "train/entropy"
PANELS = (
    ("train/reward", "Reward"),
    ("train/pass@1", "Pass@1, training prompts"),
    ("train/pass@G", "Pass@{G}, training prompts"),
    ("support/coverage_correct", "Support coverage, correct"),
    ("support/coverage_incorrect", "Support coverage, incorrect"),
    (ENTROPY, "Token entropy [nats]"),
)
"""Metric and title of each panel; G is the group size."""

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


def training_panels(runs: RunsByMethod) -> list[tuple[str, list[MethodCurve]]]:
    """Title and curves of each panel that some run logged values for."""
    return [(title, curves) for key, title in _panels(runs) if (curves := method_curves(runs, key))]


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
    if not labels:
        say_empty(axes, f"no run logged {ENTROPY}")
        return figure
    axes.set_title("Token entropy of the policy")
    axes.set_ylabel("entropy [nats]")
    axes.set_ylim(bottom=0, top=1.06 * axes.get_ylim()[1])
    count_steps(axes)
    label_ends(axes, labels)
    return figure


@styled
def training_figure(runs: RunsByMethod, styles: Mapping[str, Style]) -> Figure:
    """Small multiples of a training run: reward, pass@1, pass@G, support coverage and entropy, a line a method.

    Panels without a value in any run are left out. Lines, bands and faint lines as in `entropy_figure`.
    """
    shown = training_panels(runs)
    if not shown:
        figure = Figure(figsize=(PAGE_INCHES, 1.2))
        say_empty(figure.subplots(), "no run logged a training metric")
        return figure
    figure, grid = panels(len(shown), height=1.75)
    for axes, (title, curves) in zip(grid, shown, strict=True):
        draw_curves(axes, curves, styles)
        axes.set_title(title)
        count_steps(axes)
    method_legend(figure, styles, {curve.method for _, curves in shown for curve in curves})
    return figure


def _panels(runs: RunsByMethod) -> list[tuple[str, str]]:
    """`PANELS`, pass@G once for every group size that occurs."""
    keys = {key for group in runs.values() for run in group for key in run.metrics}
    logged = {int(found[1]) for key in keys if (found := re.fullmatch(r"train/pass@(\d+)", key))}
    result = []
    for key, title in PANELS:
        sizes = sorted(logged - {1}) if key.endswith("@G") else [0]
        result += [(key.replace("@G", f"@{size}"), title.replace("{G}", str(size))) for size in sizes]
    return result


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
            color=style.color,
            linestyle=style.linestyle,
            marker=style.marker,
            markevery=max(1, len(curve.steps) // 6),
            markersize=3.5,
            zorder=3 + style.rank,
        )
        if curve.steps:
            ends.append(EndLabel(text=style.label, x=curve.steps[-1], y=curve.mean[-1], color=style.color))
    return ends

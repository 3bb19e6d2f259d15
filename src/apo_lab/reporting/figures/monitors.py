"""What the diagnostics of a run say: squeezing, prompts and tokens lost, alarms, reachability, a line a method."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import count_steps, method_legend, panels, say_empty, styled
from apo_lab.reporting.figures.training import MethodCurve, RunsByMethod, draw_curves, method_curves
from apo_lab.reporting.style import PAGE_INCHES, QUIET, Style

PANELS = (
    ("squeeze/index_difference", "Squeezing index, error − control", "zero"),
    ("squeeze/share_tail_difference", "Tail's share, error − control", "zero"),
    ("history/net_recovered", "Prompts recovered − lost", "zero"),
    ("history/distinct_answers@", "Distinct answers in {k}", "base"),
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
)
"""Beginning of a metric's name, title, and the dotted line: 0, the first logged step, the alarm's h, or none."""
THRESHOLD = "callbacks.collapse_alarm.threshold"


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPanel:
    """One metric of all methods."""

    title: str
    curves: tuple[MethodCurve, ...]
    reference: float
    """Height of the dotted line; NaN: none."""


def monitor_panels(runs: RunsByMethod) -> list[MonitorPanel]:
    """The panels that some run logged values for; problems lost have one for each held-out set."""
    found = []
    for key, title, kind in [*_named(runs), *_held_out(runs)]:
        if curves := method_curves(runs, key):
            found.append(MonitorPanel(title=title, curves=tuple(curves), reference=_reference(runs, key, kind)))
    return found


@styled
def monitors_figure(runs: RunsByMethod, styles: Mapping[str, Style]) -> Figure:
    """Small multiples of what the diagnostics logged, a line a method.

    The dotted line is 0 where the metric is a difference or a count, the alarm's threshold, or else the mean over runs
    of the first logged value, which is the untrained policy's or one near to it. Lines, bands and faint lines as in
    `training.entropy_figure`.
    """
    shown = monitor_panels(runs)
    if not shown:
        figure = Figure(figsize=(PAGE_INCHES, 1.2))
        say_empty(figure.subplots(), "no run logged a diagnostic")
        return figure
    figure, grid = panels(len(shown), height=1.75)
    for axes, panel in zip(grid, shown, strict=True):
        if math.isfinite(panel.reference):
            axes.axhline(panel.reference, color=QUIET, linestyle=":", linewidth=1, zorder=2)
        draw_curves(axes, panel.curves, styles)
        axes.set_title(panel.title)
        count_steps(axes)
    method_legend(figure, styles, {curve.method for panel in shown for curve in panel.curves})
    return figure


def _keys(runs: RunsByMethod) -> list[str]:
    return sorted({key for group in runs.values() for run in group for key in run.metrics})


def _named(runs: RunsByMethod) -> list[tuple[str, str, str]]:
    """`PANELS`, those of some number of draws once for each number."""
    result = []
    for start, title, kind in PANELS:
        keys = [key for key in _keys(runs) if key.startswith(start)] if start.endswith("@") else [start]
        result += [(key, title.replace("{k}", key.rpartition("@")[2]), kind) for key in keys]
    return result


def _held_out(runs: RunsByMethod) -> list[tuple[str, str, str]]:
    parts = [key.split("/") for key in _keys(runs)]
    names = [part[1] for part in parts if part[0] == "alarm" and part[-1] == "num_lost"]
    return [(f"alarm/{name}/num_lost", f"Problems lost, {name}", "zero") for name in names]


def _reference(runs: RunsByMethod, key: str, kind: str) -> float:
    everything = [run for group in runs.values() for run in group]
    if kind == "zero":
        return 0.0
    if kind == "none":
        return math.nan
    if kind == "threshold":
        return float(next((run.config[THRESHOLD] for run in everything if THRESHOLD in run.config), math.nan))
    first = [run.metrics[key][1][0] for run in everything if key in run.metrics]
    return sum(first) / len(first)

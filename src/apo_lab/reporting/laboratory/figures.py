"""The laboratory's figures."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, PercentFormatter

from apo_lab.reporting.figures.canvas import NamedFigure, draw_band, label_ends, panels, styled
from apo_lab.reporting.laboratory.baselines import averaged_points
from apo_lab.reporting.laboratory.reading import LabRun, Methods, base_point, by_puzzle
from apo_lab.reporting.laboratory.sweeps import sweep_figure, sweep_of
from apo_lab.reporting.names import BASE, method_name
from apo_lab.reporting.style import COLLAPSE, QUIET, Style, styles_of
from apo_lab.statistics.exact import DEAD

MAIN = ("grpo", "nsr", "grpo_kl", "grpo_kl_error_only", "apo")
"""The paper's methods: figures of curves show these; the tables have all."""
Styles = Mapping[str, Style]


def laboratory_figures(
    runs: Sequence[LabRun], frontiers: Mapping[str, Sequence[tuple[float, float]]]
) -> list[NamedFigure]:
    """Every figure, puzzle by puzzle."""
    styles = styles_of([BASE, *(method_name(run.method) for run in runs)])
    figures = []
    for puzzle, methods in by_puzzle(runs).items():
        title, over = puzzle.capitalize(), f"Training seeds: {len(next(iter(methods.values())))}; means over them."
        shown = {method: methods[method] for method in MAIN if method in methods}
        figures += [
            NamedFigure(
                f"lab_{puzzle}_pareto",
                f"{title}: gain in pass@1 and loss in pass@64",
                "Each method from the base model (cross) through its evaluation points to its last step (marker). "
                f"{over} Open squares: GRPO's last weights averaged with the base model's, w = 0.25, 0.5, 0.75. "
                "Grey line: the frontier, the best choice of strategies by class, executed without a mistake.",
                trade_off_figure(shown, frontiers.get(puzzle, ()), styles),
            ),
            NamedFigure(
                f"lab_{puzzle}_curves",
                f"{title} over training",
                f"{over} Bands: smallest to largest seed. Grey line: the base model.",
                curves_figure(shown, styles),
            ),
            NamedFigure(
                f"lab_{puzzle}_survival",
                f"{title}: ways to a right answer that are retained",
                f"Share of valid (problem, strategy) pairs that the policy takes with a probability of {DEAD:g} "
                f"or more at the last step, by the strategy's mass in the base model. {over}",
                survival_figure(shown, styles),
            ),
        ]
        if sweep := sweep_of(runs, puzzle):
            caption = "At the last step, a mark a seed. Dotted: GRPO."
            figure = sweep_figure(sweep, methods.get("grpo", ()), styles[method_name("apo")])
            figures.append(
                NamedFigure(f"lab_{puzzle}_sweep", f"{title}: APO's coefficients, one at a time", caption, figure)
            )
    return figures


@styled
def trade_off_figure(methods: Methods, frontier: Sequence[tuple[float, float]], styles: Styles) -> Figure:
    """pass@64 against pass@1, from the base model to the last step."""
    figure, axes = _single()
    if frontier:
        ordered = sorted(frontier)
        axes.plot(*zip(*ordered, strict=True), color=QUIET, linewidth=1.0, zorder=1)
        _note(axes, "frontier", ordered[-1], (-4, 4), color=QUIET, ha="right")
    handles = []
    curves = {method: [_table(runs, f"pass@{k}").mean(0) for k in (1, 64)] for method, runs in methods.items()}
    for method, (ones, many) in curves.items():
        style = styles[method_name(method)]
        axes.plot(ones, many, **style.line, linewidth=1.2, zorder=2 + style.rank)
        axes.plot(ones[-1], many[-1], style.marker, color=style.color, zorder=20 + style.rank)
        handles.append(Line2D([], [], **style.marked_line, label=style.label))
    if averaged := averaged_points(methods.get("grpo", ())):
        open_squares: dict[str, Any] = {"marker": "s", "markerfacecolor": "white", "linestyle": ":"}
        open_squares["color"] = styles[method_name("grpo")].color
        axes.plot(*zip(*averaged, strict=True), **open_squares, linewidth=1.0, zorder=15)
        handles.append(Line2D([], [], **open_squares, label="GRPO, averaged\nwith the base"))
    base = base_point(methods)
    start = (base["pass@1"], base["pass@64"])
    axes.plot(*start, "X", color=styles[BASE].color, zorder=40)
    _note(axes, BASE, start, (6, 5), color=styles[BASE].color)
    if "grpo" in curves:  # the arrow that the paper draws
        arrow = {"arrowstyle": "->", "color": COLLAPSE, "linewidth": 0.8, "linestyle": (0, (2, 2))}
        ones, many = curves["grpo"]
        axes.annotate("", (ones[-1], many[-1]), start, arrowprops=arrow)
    axes.set_xlabel("pass@1")
    axes.set_ylabel("pass@64")
    _per_cent(axes.xaxis, axes.yaxis)
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@styled
def curves_figure(methods: Methods, styles: Styles) -> Figure:
    """pass@1, pass@64, entropy, max-prob and support mass over steps."""
    base = base_point(methods)
    kind = "operator" if "entropy/operator" in base else "strategy"
    shown = (
        ("pass@1", "pass@1"),
        ("pass@64", "pass@64"),
        ("alive", "valid ways retained"),
        (f"entropy/{kind}", f"entropy, {kind} [nats]"),
        (f"max_prob/{kind}", f"max-prob, {kind}"),
        (f"support/{kind}", f"support mass, {kind}"),
    )
    figure, grid = panels(len(shown), height=1.75)
    for place, (axes, (metric, title)) in enumerate(zip(grid, shown, strict=True)):
        axes.axhline(base[metric], color=styles[BASE].color, linewidth=1.0, linestyle=(0, (1, 1.3)))
        labels = []
        for method, runs in methods.items():
            table = _table(runs, metric)
            y = np.array([table.mean(0), table.min(0), table.max(0)])
            labels.append(draw_band(axes, runs[0].steps, y, styles[method_name(method)], marker="", linewidth=1.2))
        axes.set_title(title)
        axes.set_xlim(0, None)
        if place >= 3:
            axes.set_xlabel("step")
        if place % 3 == 2:
            label_ends(axes, labels)
    return figure


@styled
def survival_figure(methods: Methods, styles: Styles) -> Figure:
    """Share of valid ways retained at the last step, by their probability under the base model."""
    figure, axes = _single()
    base = next(iter(methods.values()))[0].scores(0)
    mass = base.valid_mass[base.has_valid]
    bins = list(itertools.pairwise((DEAD, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)))
    within = [(mass >= low) & (mass < high) for low, high in bins]
    # A bin in which the base model takes no way has no share.
    known = [place for place, inside in enumerate(within) if inside.any()]
    centres = [math.sqrt(bins[place][0] * min(bins[place][1], 0.3)) for place in known]
    for method, runs in methods.items():
        style = styles[method_name(method)]
        retained = [(run.last.valid_mass[run.last.has_valid] >= DEAD).double() for run in runs]
        shares = np.array([[each[within[place]].mean().item() for place in known] for each in retained])
        axes.plot(centres, shares.mean(0), **style.marked_line, label=style.label)
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("probability under the base model")
    axes.set_ylabel("retained at the last step")
    _per_cent(axes.yaxis)
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _single() -> tuple[Figure, Axes]:
    figure, (axes,) = panels(1, height=2.9)
    figure.set_size_inches(5.2, 3.0)
    return figure, axes


def _note(axes: Axes, text: str, place: tuple[float, float], offset: tuple[int, int], **how: Any) -> None:
    axes.annotate(text, place, xytext=offset, textcoords="offset points", fontsize=7, **how)


def _per_cent(*axes: Axis) -> None:
    for axis in axes:
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _table(runs: Sequence[LabRun], metric: str) -> np.ndarray:
    """A row a seed, a column an evaluation point."""
    return np.array([run.curve(metric) for run in runs])

"""The laboratory's figures."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from apo_lab.reporting.figures.canvas import EndLabel, label_ends, panels, styled
from apo_lab.reporting.figures.report import NamedFigure
from apo_lab.reporting.laboratory.baselines import averaged_points
from apo_lab.reporting.laboratory.reading import LabRun, by_method, puzzles_of
from apo_lab.reporting.laboratory.sweeps import sweep_figure, sweep_of
from apo_lab.reporting.names import method_name
from apo_lab.reporting.style import COLLAPSE, QUIET, Style, styles_of
from apo_lab.statistics.exact import DEAD

MAIN = ("grpo", "nsr", "grpo_kl", "grpo_kl_error_only", "apo")
"""The paper's methods: figures of curves show these; the tables have all."""
Styles = Mapping[str, Style]


def laboratory_figures(
    runs: Sequence[LabRun], frontiers: Mapping[str, Sequence[tuple[float, float]]]
) -> list[NamedFigure]:
    """Every figure, puzzle by puzzle."""
    styles = styles_of([method_name("base"), *(method_name(run.method) for run in runs)])
    figures = []
    for puzzle in puzzles_of(runs):
        methods = by_method(runs, puzzle)
        seeds = len(next(iter(methods.values())))
        over = f"Means over {seeds} training seed{'s' if seeds > 1 else ''}."
        figures += [
            NamedFigure(
                name=f"lab_{puzzle}_pareto",
                title=f"{puzzle.capitalize()}: what is gained at pass@1 and lost at pass@64",
                caption="Each method's way from the base model (cross) to its last step (marker), looks joined. "
                f"{over} Open squares: GRPO's last weights averaged with the base model's, w = 0.25, 0.5, 0.75. "
                "Grey line: the frontier, the best choice of strategies by class, carried out without a mistake.",
                figure=pareto_figure(methods, frontiers.get(puzzle, ()), styles),
            ),
            NamedFigure(
                name=f"lab_{puzzle}_curves",
                title=f"{puzzle.capitalize()} over training",
                caption=f"{over} Bands: smallest to largest seed. Grey line: the base model.",
                figure=curves_figure(methods, styles),
            ),
            NamedFigure(
                name=f"lab_{puzzle}_pass_at_k",
                title=f"{puzzle.capitalize()}: pass@k at the last step",
                caption=f"{over} Bands: smallest to largest seed. Grey: the base model.",
                figure=pass_at_k_figure(methods, styles),
            ),
            NamedFigure(
                name=f"lab_{puzzle}_survival",
                title=f"{puzzle.capitalize()}: which ways to a right answer survive",
                caption="Share of valid (problem, strategy) pairs that the policy takes with a probability of "
                f"{DEAD:g} "
                f"or more at the last step, by the strategy's mass in the base model. {over}",
                figure=survival_figure(methods, styles),
            ),
        ]
        if sweep := sweep_of(runs, puzzle):
            figures.append(
                NamedFigure(
                    name=f"lab_{puzzle}_sweep",
                    title=f"{puzzle.capitalize()}: APO's coefficients, one at a time",
                    caption="At the last step, a mark a seed. Dotted: GRPO.",
                    figure=sweep_figure(sweep, methods.get("grpo", ()), styles[method_name("apo")]),
                )
            )
    return figures


@styled
def pareto_figure(
    methods: Mapping[str, Sequence[LabRun]], frontier: Sequence[tuple[float, float]], styles: Styles
) -> Figure:
    """pass@64 against pass@1, from the base model to the last step."""
    figure, (axes,) = panels(1, height=2.9)
    figure.set_size_inches(5.2, 3.0)
    if frontier:
        ordered = sorted(frontier)
        axes.plot(*zip(*ordered, strict=True), color=QUIET, linewidth=1.0, zorder=1)
        axes.annotate(
            "frontier", ordered[-1], xytext=(-4, 4), textcoords="offset points", color=QUIET, fontsize=7, ha="right"
        )
    handles = []
    for method in _shown(methods):
        style = styles[method_name(method)]
        ones, many = (_mean_curve(methods[method], f"pass@{k}") for k in (1, 64))
        axes.plot(ones, many, color=style.color, linestyle=style.linestyle, linewidth=1.2, zorder=2 + style.rank)
        axes.plot(ones[-1], many[-1], style.marker, color=style.color, zorder=20 + style.rank)
        handles.append(
            Line2D([], [], color=style.color, linestyle=style.linestyle, marker=style.marker, label=style.label)
        )
    if averaged := averaged_points(methods.get("grpo", ())):
        color = styles[method_name("grpo")].color
        look: dict[str, Any] = {"color": color, "marker": "s", "markerfacecolor": "white", "linestyle": ":"}
        axes.plot(*zip(*averaged, strict=True), **look, linewidth=1.0, zorder=15)
        handles.append(Line2D([], [], **look, label="GRPO, averaged\nwith the base"))
    base = next(iter(methods.values()))[0].looks[0]
    axes.plot(base["pass@1"], base["pass@64"], "X", color=styles["Base"].color, zorder=40)
    axes.annotate(
        "Base",
        (base["pass@1"], base["pass@64"]),
        xytext=(6, 5),
        textcoords="offset points",
        fontsize=7,
        color=styles["Base"].color,
    )
    if "grpo" in methods:  # the arrow that the paper draws
        ones, many = (_mean_curve(methods["grpo"], f"pass@{k}") for k in (1, 64))
        axes.annotate(
            "",
            (ones[-1], many[-1]),
            (base["pass@1"], base["pass@64"]),
            arrowprops={"arrowstyle": "->", "color": COLLAPSE, "linewidth": 0.8, "linestyle": (0, (2, 2))},
        )
    axes.set_xlabel("pass@1")
    axes.set_ylabel("pass@64")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(handles=handles, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


@styled
def curves_figure(methods: Mapping[str, Sequence[LabRun]], styles: Styles) -> Figure:
    """pass@1, pass@64, entropy, max-prob and support mass over steps."""
    first = next(iter(methods.values()))[0].looks[0]
    kind = next(key.partition("/")[2] for key in first if key.startswith("entropy/"))
    kind = "operator" if "entropy/operator" in first else kind
    shown = (
        ("pass@1", "pass@1"),
        ("pass@64", "pass@64"),
        ("alive", "valid ways alive"),
        (f"entropy/{kind}", f"entropy, {kind} [nats]"),
        (f"max_prob/{kind}", f"max-prob, {kind}"),
        (f"support/{kind}", f"support mass, {kind}"),
    )
    figure, grid = panels(len(shown), height=1.75)
    for place, (axes, (metric, title)) in enumerate(zip(grid, shown, strict=True)):
        axes.axhline(first[metric], color=styles["Base"].color, linewidth=1.0, linestyle=(0, (1, 1.3)))
        labels = []
        for method in _shown(methods):
            style, runs = styles[method_name(method)], methods[method]
            steps, table = runs[0].steps, np.array([run.curve(metric) for run in runs])
            if len(runs) > 1:
                axes.fill_between(steps, table.min(0), table.max(0), color=style.color, alpha=0.12, linewidth=0)
            mean = table.mean(0)
            axes.plot(steps, mean, color=style.color, linestyle=style.linestyle, linewidth=1.2, zorder=2 + style.rank)
            labels.append(EndLabel(text=style.label, x=steps[-1], y=float(mean[-1]), color=style.color))
        axes.set_title(title)
        axes.set_xlim(0, None)
        if place >= 3:
            axes.set_xlabel("step")
        if place % 3 == 2:
            label_ends(axes, labels)
    return figure


@styled
def pass_at_k_figure(methods: Mapping[str, Sequence[LabRun]], styles: Styles) -> Figure:
    """pass@k against k at the last step, with the base model's."""
    figure, (axes,) = panels(1, height=2.9)
    figure.set_size_inches(5.2, 3.0)
    base = next(iter(methods.values()))[0].looks[0]
    ks = [int(key.removeprefix("pass@")) for key in base if key.startswith("pass@")]
    curve = [base[f"pass@{k}"] for k in ks]
    style = styles["Base"]
    axes.plot(ks, curve, color=style.color, linestyle=style.linestyle)
    labels = [EndLabel(text="Base", x=ks[-1], y=curve[-1], color=style.color)]
    for method in _shown(methods):
        style = styles[method_name(method)]
        table = np.array([[run.looks[-1][f"pass@{k}"] for k in ks] for run in methods[method]])
        axes.fill_between(ks, table.min(0), table.max(0), color=style.color, alpha=0.12, linewidth=0)
        axes.plot(ks, table.mean(0), color=style.color, linestyle=style.linestyle, zorder=2 + style.rank)
        labels.append(EndLabel(text=style.label, x=ks[-1], y=float(table.mean(0)[-1]), color=style.color))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.minorticks_off()
    axes.set_xlabel("k")
    axes.set_ylabel("pass@k")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    label_ends(axes, labels)
    return figure


@styled
def survival_figure(methods: Mapping[str, Sequence[LabRun]], styles: Styles) -> Figure:
    """Share alive at the last step, by how likely the base model takes the way."""
    figure, (axes,) = panels(1, height=2.9)
    figure.set_size_inches(5.2, 3.0)
    base = next(iter(methods.values()))[0].scores(0)
    mass = base.valid_mass[base.has_valid]
    edges = [DEAD, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0]
    centres = [math.sqrt(low * min(high, 0.3)) for low, high in itertools.pairwise(edges)]
    for method in _shown(methods):
        style = styles[method_name(method)]
        rows = []
        for run in methods[method]:
            last = run.last
            alive = last.valid_mass[last.has_valid] >= DEAD
            rows.append([_share(alive[(mass >= low) & (mass < high)]) for low, high in itertools.pairwise(edges)])
        table = np.array(rows)
        known = ~np.isnan(table).any(0)
        if not known.any():
            continue  # the base model takes no way as often as that
        x, y = np.array(centres)[known], table[:, known].mean(0)
        axes.plot(x, y, color=style.color, linestyle=style.linestyle, marker=style.marker, label=style.label)
    axes.set_xscale("log")
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("probability under the base model")
    axes.set_ylabel("alive at the last step")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _share(alive) -> float:
    return alive.double().mean().item() if len(alive) else math.nan


def _shown(methods: Mapping[str, Sequence[LabRun]]) -> list[str]:
    return [method for method in MAIN if method in methods]


def _mean_curve(runs: Sequence[LabRun], metric: str) -> list[float]:
    return np.mean([run.curve(metric) for run in runs], axis=0).tolist()

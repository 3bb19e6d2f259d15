"""The figure of six instances of locks: pass@64 over pass@1 in units of the best single kind's."""

from dataclasses import replace

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from apo_lab.reporting.reading import arm_name
from apo_lab.statistics.levels import at_levels
from apo_report.figures.canvas import (
    DOTTED,
    NamedFigure,
    draw_mean,
    method_legend,
    panels,
    styled,
    ticks_in_per_cent,
)
from apo_report.style import QUIET, styles_of
from benchmarks.laboratory.rows import best_single, curves
from benchmarks.laboratory.tables import FOUR, SIX

METHODS = ("grpo", "apo", "grpo_kl")
LEVELS = np.arange(0.40, 1.06, 0.01, dtype=np.float64)
"""Shares of the best single kind's pass@1."""


def figure() -> NamedFigure:
    return NamedFigure(
        "across_six",
        "Explored after the runs: six instances of locks, at equal shares of the best single kind's pass@1",
        "Means over three runs (locks_a to d, edition branches) or five (e and f, edition cliff) where pass@1 first "
        "reaches a level; dotted where one of them does not. Upright line: the pass@1 of the best single kind.",
        six_instances(),
    )


@styled
def six_instances() -> Figure:
    """A panel an instance, GRPO, APO and GRPO-KL in each."""
    drawn, grid = panels(len(SIX), height=1.75, most_columns=3)
    styles = styles_of(map(arm_name, METHODS))
    for axes, world in zip(grid, SIX, strict=True):
        name = "branches" if world in FOUR else "cliff"
        single = best_single(name, world)
        axes.axvline(1.0, color=QUIET, linewidth=0.8, linestyle=(0, DOTTED), zorder=1)
        for method in METHODS:
            runs = [
                at_levels(points["pass@1"].to_numpy(float), points["pass@64"].to_numpy(float), LEVELS * single)
                for *_, points in curves(name, method, world)
            ]
            style = styles[arm_name(method)]
            look = {"color": style.color, "linewidth": 1.4, "zorder": 2 + style.rank}
            draw_mean(axes, LEVELS, np.stack(runs, axis=1), marker=style.marker, **look)
        axes.set_title(f"{world}: {100 * single:.1f} %")
        axes.set_xlim(LEVELS[0], LEVELS[-1] + 0.03)  # room for the last marker
        axes.set_ylim(0.35, 1.0)
        axes.xaxis.set_major_locator(FixedLocator([0.4, 0.6, 0.8, 1.0]))
        ticks_in_per_cent(axes.yaxis)
    for axes in grid[3:]:
        axes.set_xlabel("pass@1 ÷ best single kind's")
    for axes in grid[::3]:
        axes.set_ylabel("pass@64")
    solid = {label: replace(style, dash=()) for label, style in styles.items()}
    method_legend(drawn, solid, map(arm_name, METHODS))
    return drawn

"""Figures of what was explored level by level: every world, and the differences with their bands."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apo_lab.editions.protocol import World
from apo_lab.reporting.figures.canvas import NamedFigure, method_legend, panels, styled, ticks_in_per_cent
from apo_lab.reporting.laboratory.frontier import FAMILY, best_single_strategy
from apo_lab.reporting.laboratory.levels import EXPLORED, Group
from apo_lab.reporting.laboratory.reading import arm_name
from apo_lab.reporting.style import QUIET, Style

DOTTED = (0, (1, 1.3))


def level_figures(group: Group, worlds: Mapping[str, World], styles: Mapping[str, Style]) -> Iterator[NamedFigure]:
    """pass@64 over pass@1 in each world, and each method's difference to the first one."""
    single = " Dotted upright line: pass@1 of the best single strategy." if _has_single(group, worlds) else ""
    yield NamedFigure(
        f"lab_levels_{group.name}",
        f"{EXPLORED}: pass@64 where pass@1 first reaches a level ({group.name})",
        f"Means over the runs of a method that reach the level; dotted where one of its runs does not.{single}",
        worlds_figure(group, worlds, styles),
    )
    yield NamedFigure(
        f"lab_level_differences_{group.name}",
        f"{EXPLORED}: difference of pass@64 to {arm_name(group.trained[0])} at equal pass@1 ({group.name})",
        "Thick: mean over worlds, with a band over seeds that holds the whole curve in 95 % of cases; none where a "
        "method has fewer than two runs in some world, and cut at the frame where it is longer. Thin: each world.",
        differences_figure(group, styles),
    )


@styled
def worlds_figure(group: Group, worlds: Mapping[str, World], styles: Mapping[str, Style]) -> Figure:
    """A panel a world: each arm's mean over its runs at each level."""
    figure, grid = panels(len(group.worlds), height=2.3 if len(group.worlds) > 1 else 2.9, most_columns=2)
    for axes, world in zip(grid, group.worlds, strict=True):
        if worlds[world].family == FAMILY:
            axes.axvline(best_single_strategy(worlds[world]), color=QUIET, linewidth=0.8, linestyle=DOTTED, zorder=1)
        for name in group.trained:
            curves = group.curves(name, group.grid).get(world)
            if curves is not None:
                _draw_mean(axes, group.grid, curves, styles[arm_name(name)])
        axes.set_title(world)
        axes.set_xlabel("pass@1")
        ticks_in_per_cent(axes.xaxis, axes.yaxis)
    grid[0].set_ylabel("pass@64")
    solid = {label: replace(style, dash=()) for label, style in styles.items()}
    method_legend(figure, solid, [arm_name(name) for name in group.trained], most_columns=4 if len(grid) > 1 else 2)
    return figure


@styled
def differences_figure(group: Group, styles: Mapping[str, Style]) -> Figure:
    """A panel for each method but the first: its difference to that one, in each world and on average."""
    first, *others = group.trained
    figure, grid = panels(len(others), height=1.9 if len(others) > 1 else 2.9, most_columns=min(4, len(others)))
    drawn = [0.0]
    for axes, name in zip(grid, others, strict=True):
        style, (levels, band) = styles[arm_name(name)], group.band((first, name))
        axes.axhline(0.0, color=QUIET, linewidth=0.8, zorder=1)
        axes.fill_between(levels, band.low, band.high, color=style.color, alpha=0.18, linewidth=0, zorder=2)
        before, after = (group.curves(each, levels) for each in (first, name))
        for world in group.worlds if len(group.worlds) > 1 else ():
            if world in before and world in after:
                difference = _mean(after[world]) - _mean(before[world])
                axes.plot(levels, difference, color=style.color, linewidth=0.6, alpha=0.6, zorder=3)
                drawn += difference[np.isfinite(difference)].tolist()
        drawn += band.mean[np.isfinite(band.mean)].tolist()
        axes.plot(levels, band.mean, color=style.color, linewidth=1.6, zorder=4)
        axes.set_title(arm_name(name), fontsize="small")
        axes.set_xlabel("pass@1")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
        ticks_in_per_cent(axes.xaxis)
        axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:+.3g}".replace("+0", "0"))
    for axes in grid:
        axes.set_ylim(1.05 * min(drawn), 1.05 * max(drawn))  # a band may be much longer where one run is left
    grid[0].set_ylabel("points of pass@64")
    return figure


def _draw_mean(axes: Axes, levels: np.ndarray, curves: np.ndarray, style: Style) -> None:
    """A solid line while all runs reach the level, then a dotted one."""
    mean, is_whole = _mean(curves), np.isfinite(curves).all(1)
    order = {"color": style.color, "linewidth": 1.2, "zorder": 2 + style.rank}
    axes.plot(levels, np.where(is_whole, mean, np.nan), linestyle="-", **order)
    last = int(is_whole.sum()) - 1
    axes.plot(levels[max(last, 0) :], mean[max(last, 0) :], linestyle=DOTTED, **order)
    if last >= 0:
        axes.plot(levels[last], mean[last], style.marker, color=style.color, markersize=4, zorder=30 + style.rank)


def _mean(curves: np.ndarray) -> np.ndarray:
    """Over the runs that reach a level; NaN where none does."""
    counts = np.isfinite(curves).sum(1)
    return np.where(counts > 0, np.nansum(curves, axis=1) / np.maximum(counts, 1), np.nan)


def _has_single(group: Group, worlds: Mapping[str, World]) -> bool:
    return any(worlds[world].family == FAMILY for world in group.worlds)

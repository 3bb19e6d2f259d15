"""pass@k against k, and Pass@1 against Pass@K."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.averages import series_name
from apo_lab.reporting.figures.canvas import (
    EndLabel,
    filled_and_hollow,
    label_ends,
    label_points,
    log2_axis,
    method_legend,
    panels,
    styled,
)
from apo_lab.reporting.names import BASE, METHODS, benchmark_name, in_benchmark_order
from apo_lab.reporting.records import Measurement
from apo_lab.reporting.style import COLLAPSE, Style
from apo_lab.reporting.tables.main_results import without_variants
from apo_lab.reporting.tables.series import average, budgets, common_benchmarks, series
from apo_lightning.evaluation.records import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ParetoPoint:
    """One method of one model, averaged over benchmarks."""

    block: str
    """The model, and how it was measured where that differs."""
    method: str
    pass_at_1: Estimate
    pass_at_k: Estimate
    """Pass@K, where K is the sample budget of each benchmark."""

    @property
    def place(self) -> tuple[float, float]:
        """Pass@1 and Pass@K [%]."""
        return 100 * self.pass_at_1.value, 100 * self.pass_at_k.value

    @property
    def cross(self) -> tuple[tuple[Sequence[float], Sequence[float]], ...]:
        """The two intervals [%] as lines: x and y of their ends."""
        (x, y), one, many = self.place, self.pass_at_1, self.pass_at_k
        return ((100 * one.low, 100 * one.high), (y, y)), ((x, x), (100 * many.low, 100 * many.high))


def shown_methods(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that these figures draw: what the table of main results lists, seeds averaged."""
    evaluated = [item for item in measurements if not item.held_out]
    return [item for method in without_variants(series(evaluated)) for item in method.by_benchmark.values()]


def pareto_points(measurements: Sequence[Measurement]) -> list[ParetoPoint]:
    """Pass@1 and Pass@K of every method, averaged over the benchmarks that all methods of its model have."""
    evaluated = [item for item in measurements if not item.held_out]
    shown, budget = without_variants(series(evaluated)), budgets(evaluated)
    points = []
    for item in shown:
        names = common_benchmarks([other for other in shown if other.block == item.block])
        first = average(item, names, dict.fromkeys(names, "pass@1"))
        every = average(item, names, {name: f"pass@{budget[name]}" for name in names})
        if first is not None and every is not None:
            points.append(ParetoPoint(block=item.block, method=item.name, pass_at_1=first, pass_at_k=every))
    return points


@styled
def pass_at_k_figure(measurements: Sequence[Measurement], styles: Mapping[str, Style]) -> Figure:
    """pass@k against k on a logarithmic axis, a line a method, a panel a benchmark (and model).

    Bands are 95 % intervals. Where a trained model's line crosses below the base model's, training has improved pass@1
    at the cost of pass@k.
    """
    curves = [item for item in shown_methods(measurements) if item.pass_at_k]
    blocks = list(dict.fromkeys(item.block for item in curves))
    benchmarks = in_benchmark_order(item.benchmark for item in curves)
    present = {(item.block, item.benchmark) for item in curves}
    wanted = [(block, name) for block in blocks for name in benchmarks if (block, name) in present]
    figure, grid = panels(len(wanted), height=1.9)
    for axes, (block, benchmark) in zip(grid, wanted, strict=True):
        shown = [item for item in curves if (item.block, item.benchmark) == (block, benchmark)]
        ends = [_curve(axes, item, styles[series_name(item)]) for item in shown]
        suffix = f"\n{block}" if len(blocks) > 1 else ""
        axes.set_title(benchmark_name(benchmark) + suffix)
        log2_axis(axes, "k")
        axes.set_ylabel("pass@k [%]")
        if len(wanted) == 1:
            label_ends(axes, ends)
    if len(wanted) > 1:
        method_legend(figure, styles, {series_name(item) for item in curves})
    return figure


@styled
def pareto_figure(
    measurements: Sequence[Measurement],
    styles: Mapping[str, Style],
    *,
    published: Sequence[Measurement] = (),
) -> Figure:
    """Pass@1 (efficiency) against Pass@K (coverage), a point a method, averaged over benchmarks; a panel a block.

    Faint crosses are 95 % intervals. The dashed arrow from the base model to GRPO is the collapse of diversity,
    drawn where GRPO gains Pass@1 *and* loses Pass@K. Hollow markers are published numbers.

    Source: APO paper, figure "Efficiency-Diversity Pareto Frontier".

    Args:
        measurements: of the policies that were measured here.
        styles: of every method in either.
        published: with `pass@1` and `pass@n` of each cell; drawn for the models in `measurements`, for all where
            nothing was measured. Their means are over the benchmarks of `measurements` that they have.
    """
    ours = pareto_points(measurements)
    measured = {item.benchmark for item in measurements if not item.held_out}
    theirs = pareto_points([item for item in published if not ours or item.benchmark in measured])
    blocks = list(dict.fromkeys(point.block for point in ours or theirs))
    figure, grid = panels(len(blocks), height=2.7, most_columns=2)
    # The paper's points have no block but their model.
    models = {item.block: item.model for item in measurements}
    shown = [
        (
            [point for point in ours if point.block == block],
            [point for point in theirs if point.block == models.get(block, block)],
        )
        for block in blocks
    ]
    for axes, block, (mine, paper) in zip(grid, blocks, shown, strict=True):
        _pareto_panel(axes, mine, paper, styles)
        axes.set_title(block)
    if any(mine and paper for mine, paper in shown):
        figure.legend(handles=filled_and_hollow(), loc="outside lower center", ncols=2)
    figure.draw_without_rendering()
    # Only now is it known how steep an arrow is on paper.
    for axes, (mine, paper) in zip(grid, shown, strict=True):
        places = [point.place for point in paper] + [place for point in mine for place in _on_cross(point)]
        avoid = _collapse_arrow(axes, mine or paper) + places
        label_points(axes, _pareto_labels(mine, paper, styles), avoid)
    return figure


def _curve(axes: Axes, measurement: Measurement, style: Style) -> EndLabel:
    ks = np.arange(1, len(measurement.pass_at_k) + 1)
    values, low, high = (
        100 * np.array([getattr(estimate, name) for estimate in measurement.pass_at_k])
        for name in ("value", "low", "high")
    )
    axes.fill_between(ks, low, high, color=style.color, alpha=0.09, linewidth=0, zorder=2)
    powers = [int(k) - 1 for k in ks if k & (k - 1) == 0]
    axes.plot(
        ks,
        values,
        **style.marked_line,
        markevery=powers[:: max(1, len(powers) // 4)],
        markersize=3.5,
        zorder=3 + style.rank,
    )
    return EndLabel(text=style.label, x=float(ks[-1]), y=float(values[-1]), color=style.color)


def _pareto_panel(
    axes: Axes, mine: Sequence[ParetoPoint], paper: Sequence[ParetoPoint], styles: Mapping[str, Style]
) -> None:
    for points, hollow in ((paper, True), (mine, False)):
        for point in points:
            style = styles[point.method]
            for line in point.cross:
                axes.plot(*line, color=style.color, alpha=0.35, linewidth=1, zorder=2)
            axes.plot(
                *point.place,
                linestyle="none",
                marker=style.marker,
                markersize=6.5,
                markerfacecolor="white" if hollow else style.color,
                markeredgecolor=style.color if hollow else "white",
                markeredgewidth=1.1 if hollow else 0.6,
                zorder=4 + style.rank,
            )
    axes.margins(0.16)
    axes.set_ylim(top=min(axes.get_ylim()[1], 101))
    axes.grid(True, axis="both")
    axes.set_xlabel("Pass@1 [%], mean over benchmarks")
    axes.set_ylabel("Pass@K [%], mean over benchmarks")


def _pareto_labels(
    mine: Sequence[ParetoPoint], paper: Sequence[ParetoPoint], styles: Mapping[str, Style]
) -> list[EndLabel]:
    """Names at every point but published ones whose method was measured: colour and marker say what they are."""
    measured = {point.method for point in mine}
    return [
        EndLabel(text=style.label, x=point.place[0], y=point.place[1], color=style.color)
        for point in [*mine, *(point for point in paper if point.method not in measured)]
        for style in [styles[point.method]]
    ]


def _on_cross(point: ParetoPoint) -> list[tuple[float, float]]:
    """Places on the intervals of a point, for labels to avoid; none where there is no interval."""
    lines = [np.linspace((x[0], y[0]), (x[1], y[1]), 9) for x, y in point.cross]
    return [(float(x), float(y)) for line in lines for x, y in line if np.isfinite([x, y]).all()]


def _collapse_arrow(axes: Axes, points: Sequence[ParetoPoint]) -> list[tuple[float, float]]:
    """Draw an arrow from the base model to GRPO, if that is a collapse; returns places on it, for labels to avoid."""
    found = {point.method: point.place for point in points}
    start, end = found.get(BASE), found.get(METHODS["grpo"])
    if start is None or end is None or not (end[0] > start[0] and end[1] < start[1]):
        return []
    line = {"arrowstyle": "-|>", "linestyle": (0, (4, 2)), "color": COLLAPSE, "linewidth": 1}
    axes.annotate("", end, start, arrowprops={**line, "shrinkA": 6, "shrinkB": 6}, zorder=3)
    along = np.linspace(start, end, 40)
    run, rise = axes.transData.transform(end) - axes.transData.transform(start)
    axes.annotate(
        "diversity collapse",
        tuple(along[18]),
        xytext=(0, -3),
        textcoords="offset points",
        ha="center",
        va="top",
        rotation=np.degrees(np.arctan2(rise, run)),
        rotation_mode="anchor",
        color=COLLAPSE,
        fontsize=7,
        fontstyle="italic",
    )
    return [(float(x), float(y)) for x, y in along]

"""pass@k against k, and Pass@1 against Pass@K."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from apo_lab.reporting.figures.canvas import (
    draw_band,
    filled_and_hollow,
    log2_axis,
    method_legend,
    panels,
    per_cent,
    styled,
)
from apo_lab.reporting.names import BASE, BENCHMARKS, METHODS, benchmark_name, in_order
from apo_lab.reporting.records import Measurement
from apo_lab.reporting.style import COLLAPSE, KNOWN, Style
from apo_lab.reporting.tables.series import average, budgets, common_benchmarks, evaluated, series, without_variants
from apo_lightning.evaluation.records import Estimate

ARROWS: Mapping[str, Mapping[str, Any]] = {
    "diversity collapse": {"linestyle": (0, (4, 2)), "color": COLLAPSE},
    "recovery": {"linestyle": "-", "color": KNOWN[METHODS["apo"]].color},
}
"""Looks of the arrows of the Pareto figure, by their name in its legend."""


class ParetoPoint(NamedTuple):
    """One method of one model, averaged over benchmarks; Pass@K is at each benchmark's sample budget."""

    block: str
    method: str
    pass_at_1: Estimate
    pass_at_k: Estimate


def shown_methods(measurements: Sequence[Measurement]) -> list[Measurement]:
    """The measurements that these figures draw: what the table of main results lists, seeds averaged."""
    shown = without_variants(series(evaluated(measurements)))
    return [item for method in shown for item in method.by_benchmark.values()]


def pareto_points(measurements: Sequence[Measurement]) -> list[ParetoPoint]:
    """Pass@1 and Pass@K of every method, averaged over the benchmarks that all methods of its model have."""
    shown, points = without_variants(series(evaluated(measurements))), []
    common = common_benchmarks(shown)
    for item in shown:
        names = common[item.head.block]
        first, every = average(item, names, "pass@1"), average(item, names, "pass@K")
        if first is not None and every is not None:
            points.append(ParetoPoint(item.head.block, item.head.name, first, every))
    return points


@styled
def pass_at_k_figure(measurements: Sequence[Measurement], styles: Mapping[str, Style]) -> Figure:
    """pass@k against k on a logarithmic axis, a line a method, a panel a benchmark (and model).

    Bands are 95 % intervals. Where a trained model's line crosses below the base model's, training has improved pass@1
    at the cost of pass@k.
    """
    curves = [item for item in shown_methods(measurements) if item.pass_at_k]
    blocks = list(dict.fromkeys(item.block for item in curves))
    present = {(item.block, item.benchmark) for item in curves}
    benchmarks = in_order((item.benchmark for item in curves), BENCHMARKS)
    wanted = [(block, name) for block in blocks for name in benchmarks if (block, name) in present]
    figure, grid = panels(len(wanted), height=1.9)
    for axes, (block, benchmark) in zip(grid, wanted, strict=True):
        shown = [item for item in curves if (item.block, item.benchmark) == (block, benchmark)]
        for item in shown:
            draw_band(
                axes,
                range(1, len(item.pass_at_k) + 1),
                per_cent(item.pass_at_k),
                styles[item.name],
                markevery=[2**power - 1 for power in range(len(item.pass_at_k).bit_length())],
            )
        axes.set_title(benchmark_name(benchmark) + (f"\n{block}" if len(blocks) > 1 else ""))
        log2_axis(axes, "k")
        axes.set_ylabel("pass@k [%]")
    method_legend(figure, styles, {item.name for item in curves})
    return figure


@styled
def pareto_figure(
    measurements: Sequence[Measurement], styles: Mapping[str, Style], *, published: Sequence[Measurement] = ()
) -> Figure:
    """Pass@1 (efficiency) against Pass@K (coverage), a point a method, averaged over benchmarks; a panel a block.

    Faint crosses are 95 % intervals. The dashed arrow from the base model to GRPO is the collapse of diversity,
    drawn where GRPO gains Pass@1 *and* loses Pass@K; the solid arrow from GRPO to APO is the recovery, drawn where
    APO's Pass@K is higher. Hollow markers are published numbers of the measured models, means
    over the benchmarks of `measurements`.

    Source: APO paper, figure "Efficiency-Diversity Pareto Frontier".
    """
    measured = {item.benchmark for item in evaluated(measurements)}
    where = "mean over benchmarks" if len(measured) > 1 else benchmark_name(*measured)
    ks = set(budgets(evaluated(measurements)).values())
    k = max(ks) if len(ks) == 1 else "K"
    models = {item.block: item.model for item in measurements}
    ours, theirs = pareto_points(measurements), pareto_points([p for p in published if p.benchmark in measured])
    blocks = list(dict.fromkeys(point.block for point in ours))
    figure, grid = panels(len(blocks), height=2.7, most_columns=2)
    shown: dict[str, Style] = {}
    arrows: dict[str, None] = {}
    for axes, block in zip(grid, blocks, strict=True):
        mine = [point for point in ours if point.block == block]
        # The paper's points have no block but their model.
        paper = [point for point in theirs if point.block == models[block]]
        for point in (*paper, *mine):
            _draw_point(axes, point, styles[point.method], hollow=point in paper)
        shown |= {point.method: styles[point.method] for point in (*mine, *paper)}
        arrows |= dict.fromkeys(_draw_arrows(axes, mine))
        axes.margins(0.16)
        axes.set_ylim(top=min(axes.get_ylim()[1], 101))
        axes.grid(True, axis="both")
        axes.set_title(block)
        axes.set_xlabel(f"Pass@1 [%], {where}")
        axes.set_ylabel(f"Pass@{k} [%], {where}")
    handles = [
        Line2D([], [], color=style.color, marker=style.marker, linestyle="none", label=style.label)
        for name, style in styles.items()
        if name in shown
    ]
    handles += [Line2D([], [], linewidth=1, label=name, **ARROWS[name]) for name in arrows]
    handles += filled_and_hollow() if any(point.block in models.values() for point in theirs) else []
    figure.legend(handles=handles, loc="outside lower center", ncols=2 if len(blocks) == 1 else 4)
    return figure


def _draw_point(axes: Axes, point: ParetoPoint, style: Style, *, hollow: bool) -> None:
    (x, y), low, high = per_cent([point.pass_at_1, point.pass_at_k])
    marker, *_ = axes.errorbar(
        x,
        y,
        xerr=[[x - low[0]], [high[0] - x]],
        yerr=[[y - low[1]], [high[1] - y]],
        linestyle="none",
        marker=style.marker,
        markersize=6.5,
        markerfacecolor="white" if hollow else style.color,
        markeredgecolor=style.color if hollow else "white",
        markeredgewidth=1.1 if hollow else 0.6,
        ecolor=(style.color, 0.35),
        elinewidth=1,
        zorder=4 + style.rank,
    )
    marker.set_clip_on(False)  # half of one at 100 % would be cut off


def _draw_arrows(axes: Axes, points: Sequence[ParetoPoint]) -> list[str]:
    """Draw the arrows that the points have, and return their names."""
    ends = pareto_arrows(points)
    for name, (start, end) in ends.items():
        look = {"arrowstyle": "-|>", "linewidth": 1, "shrinkA": 6, "shrinkB": 6, **ARROWS[name]}
        axes.annotate("", end, start, arrowprops=look, zorder=3)
    return list(ends)


def pareto_arrows(points: Sequence[ParetoPoint]) -> dict[str, tuple[tuple[float, float], tuple[float, float]]]:
    """{name: (start, end) [%]} of the arrows that the points of one block have."""
    places = {point.method: (100 * point.pass_at_1.value, 100 * point.pass_at_k.value) for point in points}
    base, grpo, apo = (places.get(method) for method in (BASE, METHODS["grpo"], METHODS["apo"]))
    ends = {}
    if base is not None and grpo is not None and grpo[0] > base[0] and grpo[1] < base[1]:
        ends["diversity collapse"] = (base, grpo)
    if grpo is not None and apo is not None and apo[1] > grpo[1]:
        ends["recovery"] = (grpo, apo)
    return ends

"""Figures of evaluations: Pass@1 against Pass@K, pass@k against k, and Pass@1 against each setting of a sweep."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from apo_lightning.evaluation.records import Estimate
from apo_report.figures.canvas import (
    draw_band,
    filled_and_hollow,
    legend_below,
    method_legend,
    panels,
    per_cent,
    styled,
)
from apo_report.names import BASE, BENCHMARKS, METHODS, axis_name, in_order
from apo_report.records import Measurement
from apo_report.runs import value_place
from apo_report.style import COLLAPSE, KNOWN, Style
from apo_report.tables.accuracies import variants_of
from apo_report.tables.series import (
    average,
    budgets,
    common_benchmarks,
    evaluated,
    series,
    series_of,
    without_variants,
)

ARROWS: Mapping[str, Mapping[str, Any]] = {
    "diversity collapse": {"linestyle": (0, (4, 2)), "color": COLLAPSE},
    "recovery": {"linestyle": "-", "color": KNOWN[METHODS["apo"]].color},
}
"""Looks of the arrows of the Pareto figure, by their name in its legend."""
Points = Mapping[str, Estimate]
"""Value of a setting as it was typed, ascending → mean of pass@1 over benchmarks, a fraction."""


class ParetoPoint(NamedTuple):
    """One method of one model, averaged over benchmarks; Pass@K is at each benchmark's sample budget."""

    block: str
    method: str
    label: str
    """Its name in its block."""
    pass_at_1: Estimate
    pass_at_k: Estimate


def pareto_points(measurements: Sequence[Measurement]) -> list[ParetoPoint]:
    """Pass@1 and Pass@K of every method, averaged over the benchmarks that all methods of its model have."""
    shown, points = without_variants(series(evaluated(measurements))), []
    common = common_benchmarks(shown)
    for item in shown:
        names = common[item.head.block]
        first, every = average(item, names, "pass@1"), average(item, names, "pass@K")
        if first is not None and every is not None:
            points.append(ParetoPoint(item.head.block, item.head.name, item.label, first, every))
    return points


def pareto_arrows(points: Sequence[ParetoPoint]) -> dict[str, tuple[tuple[float, float], tuple[float, float]]]:
    """{name: (start, end) [%]} of the arrows that the points of one block have."""
    places = {point.label: (100 * point.pass_at_1.value, 100 * point.pass_at_k.value) for point in points}
    base, grpo, apo = (places.get(method) for method in (BASE, METHODS["grpo"], METHODS["apo"]))
    ends = {}
    if base is not None and grpo is not None and grpo[0] > base[0] and grpo[1] < base[1]:
        ends["diversity collapse"] = (base, grpo)
    if grpo is not None and apo is not None and apo[1] > grpo[1]:
        ends["recovery"] = (grpo, apo)
    return ends


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
    where = "mean over benchmarks" if len(measured) > 1 else BENCHMARKS[next(iter(measured))]
    ks = set(budgets(evaluated(measurements)).values())
    k = max(ks) if len(ks) == 1 else "K"
    models = {item.block: item.model for item in measurements}
    ours, theirs = pareto_points(measurements), pareto_points([p for p in published if p.benchmark in measured])
    blocks = list(dict.fromkeys(point.block for point in ours))
    figure, grid = panels(len(blocks), height=2.7, most_columns=2)
    shown: dict[str, Line2D] = {}
    for axes, block in zip(grid, blocks, strict=True):
        mine = [point for point in ours if point.block == block]
        # The paper's points have no block but their model.
        paper = [point for point in theirs if point.block == models[block]]
        for point in (*paper, *mine):
            _draw_point(axes, point, styles[point.method], hollow=point in paper)
            look = {**styles[point.method].marked_line, "linestyle": "none"}
            is_alone = len(blocks) == 1 and not paper
            shown[point.method] = Line2D([], [], label=point.label if is_alone else point.method, **look)
        for name, (start, end) in pareto_arrows(mine).items():
            look = {"arrowstyle": "-|>", "linewidth": 1, "shrinkA": 6, "shrinkB": 6, **ARROWS[name]}
            axes.annotate("", end, start, arrowprops=look, zorder=3)
            shown[name] = Line2D([], [], linewidth=1, label=name, **ARROWS[name])
        axes.margins(0.16)
        axes.set_ylim(top=min(axes.get_ylim()[1], 101))
        axes.grid(True, axis="both")
        axes.set(title=block, xlabel=f"Pass@1 [%], {where}", ylabel=f"Pass@{k} [%], {where}")
    handles = [shown[name] for name in (*styles, *ARROWS) if name in shown]
    handles += filled_and_hollow() if any(point.block in models.values() for point in theirs) else []
    legend_below(figure, handles, most_columns=2 if len(blocks) == 1 else 4)
    return figure


@styled
def pass_at_k_figure(measurements: Sequence[Measurement], styles: Mapping[str, Style]) -> Figure:
    """pass@k against k on a logarithmic axis, a line a method, a panel a benchmark (and model).

    Bands are 95 % intervals. Where a trained model's line crosses below the base model's, training has improved pass@1
    at the cost of pass@k.
    """
    shown = without_variants(series(evaluated(measurements)))
    curves = [item for method in shown for item in method.by_benchmark.values() if item.pass_at_k]
    blocks = list(dict.fromkeys(item.block for item in curves))
    benchmarks = in_order((item.benchmark for item in curves), BENCHMARKS)
    present = {(item.block, item.benchmark) for item in curves}
    wanted = [(block, name) for block in blocks for name in benchmarks if (block, name) in present]
    figure, grid = panels(len(wanted), height=1.9)
    for axes, (block, benchmark) in zip(grid, wanted, strict=True):
        for item in (item for item in curves if (item.block, item.benchmark) == (block, benchmark)):
            count = len(item.pass_at_k)
            powers = [2**power - 1 for power in range(count.bit_length())]
            draw_band(axes, range(1, count + 1), per_cent(item.pass_at_k), styles[item.name], markevery=powers)
        axes.set_title(BENCHMARKS[benchmark] + (f"\n{block}" if len(blocks) > 1 else ""))
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set(xlabel="k (log scale)", ylabel="pass@k [%]")
    if len(blocks) == 1:
        styles = {s.head.name: replace(styles[s.head.name], label=s.label) for s in shown}
    method_legend(figure, styles, {item.name for item in curves})
    return figure


def sensitivity_points(
    measurements: Sequence[Measurement], block: str, method: str, usual: Mapping[str, str]
) -> dict[str, Points]:
    """Setting → its points, for every setting along which runs of a method depart from its defaults in nothing else."""
    items = series_of(measurements, block, method)
    names = common_benchmarks(items).get(block, ())
    found = {}
    for keys, variants in variants_of(items, usual).items():
        # Several weights under one name would be several points at one value.
        points = {
            value: estimate
            for (value, *_), item in variants
            if not item.head.which and (estimate := average(item, names, "pass@1")) is not None
        }
        if len(keys) == 1 and len(points) > 1:
            found[keys[0]] = points
    return found


@styled
def sensitivity_figure(ours: Mapping[str, Points], published: Mapping[str, Points], usual: Mapping[str, str]) -> Figure:
    """Pass@1, mean over benchmarks, at each value of a setting; a panel a setting, a star at the default.

    Vertical lines are 95 % intervals. Values stand side by side at equal distances, as typed. Hollow markers on a
    dotted line are published numbers.

    Source: APO paper, figure "Hyperparameter Sensitivity Analysis".
    """
    figure, grid = panels(len(ours), height=1.9)
    color = KNOWN[METHODS["apo"]].color
    for axes, (key, mine) in zip(grid, ours.items(), strict=True):
        theirs, default = published.get(key, {}), usual.get(key, "default")
        values = sorted({*mine, *theirs}, key=value_place)
        for points, fill, edge, line in ((theirs, "white", color, ":"), (mine, color, "white", "-")):
            if not points:
                continue
            x = [values.index(value) for value in points]
            y, low, high = per_cent(points.values())
            axes.vlines(x, low, high, color=color, alpha=0.35, linewidth=1.2)
            axes.plot(x, y, line, color=color, linewidth=1.1, zorder=3)
            for value, at, height in zip(points, x, y, strict=True):
                shape, size = ("*", 10) if value == default else ("o", 5)
                look = {"marker": shape, "markersize": size, "markerfacecolor": fill, "markeredgecolor": edge}
                axes.plot(at, height, **look, zorder=4)
        axes.set_xticks(range(len(values)), values)
        axes.margins(x=0.12, y=0.14)
        axes.set(title=f"Pass@1 against {axis_name(key)}", xlabel=axis_name(key))
    low, high = (end(axes.get_ylim()[place] for axes in grid) for place, end in enumerate((min, max)))
    for axes in grid:
        # One scale: a panel on its own would make noise look like an effect.
        axes.set_ylim(low, high)
    if published.keys() & ours.keys():
        figure.legend(handles=filled_and_hollow(), loc="outside lower center", ncols=2)
    grid[0].set_ylabel("Pass@1 [%]")
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

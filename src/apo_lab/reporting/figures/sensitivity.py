"""Pass@1 against each setting of a sweep, one panel a setting."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.axes import value_place
from apo_lab.reporting.figures.canvas import filled_and_hollow, panels, per_cent, styled
from apo_lab.reporting.names import METHODS, axis_name
from apo_lab.reporting.records import Measurement
from apo_lab.reporting.style import KNOWN
from apo_lab.reporting.tables.sensitivity import variants_of
from apo_lab.reporting.tables.series import average, common_benchmarks, series_of
from apo_lightning.evaluation.records import Estimate

Points = Mapping[str, Estimate]
"""Value of a setting as it was typed, ascending → mean of pass@1 over benchmarks, a fraction."""


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
    for axes, (key, points) in zip(grid, ours.items(), strict=True):
        _panel(axes, points, published.get(key, {}), usual.get(key, "default"))
        axes.set_title(f"Pass@1 against {axis_name(key)}")
        axes.set_xlabel(axis_name(key))
    low = min(axes.get_ylim()[0] for axes in grid)
    high = max(axes.get_ylim()[1] for axes in grid)
    for axes in grid:
        # One scale: a panel on its own would make noise look like an effect.
        axes.set_ylim(low, high)
    if published.keys() & ours.keys():
        figure.legend(handles=filled_and_hollow(), loc="outside lower center", ncols=2)
    grid[0].set_ylabel("Pass@1 [%]")
    return figure


def _panel(axes: Axes, ours: Points, published: Points, usual: str) -> None:
    color = KNOWN[METHODS["apo"]].color
    values = sorted({*ours, *published}, key=value_place)
    for points, fill, edge, line in ((published, "white", color, ":"), (ours, color, "white", "-")):
        if not points:
            continue
        x = [values.index(value) for value in points]
        y, low, high = per_cent(points.values())
        axes.vlines(x, low, high, color=color, alpha=0.35, linewidth=1.2)
        axes.plot(x, y, line, color=color, linewidth=1.1, zorder=3)
        for value, at, height in zip(points, x, y, strict=True):
            shape, size = ("*", 10) if value == usual else ("o", 5)
            look = {"marker": shape, "markersize": size, "markerfacecolor": fill, "markeredgecolor": edge}
            axes.plot(at, height, **look, zorder=4)
    axes.set_xticks(range(len(values)), values)
    axes.margins(x=0.12, y=0.14)

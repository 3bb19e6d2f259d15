"""Pass@1 against each setting of a sweep, one panel a setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.axes import plain, value_place
from apo_lab.reporting.figures.canvas import ends, filled_and_hollow, panels, styled
from apo_lab.reporting.names import AXES, METHODS, axis_name, in_order
from apo_lab.reporting.records import Measurement
from apo_lab.reporting.style import INK, KNOWN
from apo_lab.reporting.tables.series import average, common_benchmarks, series_of
from apo_lightning.evaluation.records import Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityPoint:
    """The result at one value of a setting."""

    value: str
    """The value as it was typed: `0.02`."""
    estimate: Estimate
    """The mean of pass@1 over benchmarks, a fraction."""
    is_default: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityPanel:
    """The values of one setting, ascending, with all others at their defaults."""

    axis: str
    """The setting's key: `algo.loss.pull_coef`."""
    points: tuple[SensitivityPoint, ...]
    published: tuple[SensitivityPoint, ...] = ()


def sensitivity_panels(
    measurements: Sequence[Measurement],
    *,
    block: str,
    method: str,
    defaults: Mapping[str, str] | None = None,
    published: Sequence[Measurement] = (),
) -> list[SensitivityPanel]:
    """A panel for every setting along which runs of a method depart from its defaults in nothing else.

    Args:
        measurements: of which those of this block and method are taken.
        block: a model, and how it was measured where that differs.
        method: as tables print it.
        defaults: value of each setting where nothing is overridden; one that is missing is called "default".
        published: drawn beside, where the model and method match.
    """
    model = next((item.model for item in measurements if item.block == block), block)
    ours = _along_axes(measurements, block, method, defaults or {})
    theirs = _along_axes(published, model, method, defaults or {})
    return [SensitivityPanel(axis=axis, points=points, published=theirs.get(axis, ())) for axis, points in ours.items()]


@styled
def sensitivity_figure(shown: Sequence[SensitivityPanel]) -> Figure:
    """Pass@1, mean over benchmarks, at each value of a setting; a panel a setting, a star at the default.

    Vertical lines are 95 % intervals. Values stand side by side at equal distances, as typed. Hollow markers on a
    dotted line are published numbers.

    Source: APO paper, figure "Hyperparameter Sensitivity Analysis".
    """
    figure, grid = panels(len(shown), height=1.9)
    for axes, panel in zip(grid, shown, strict=True):
        _panel(axes, panel)
        axes.set_title(f"Pass@1 against {axis_name(panel.axis)}")
        axes.set_xlabel(axis_name(panel.axis))
    low = min(axes.get_ylim()[0] for axes in grid)
    high = max(axes.get_ylim()[1] for axes in grid)
    for axes in grid:
        # One scale: a panel on its own would make noise look like an effect.
        axes.set_ylim(low, high)
    if any(panel.published for panel in shown):
        figure.legend(handles=filled_and_hollow(), loc="outside lower center", ncols=2)
    grid[0].set_ylabel("Pass@1 [%]")
    return figure


def _along_axes(
    measurements: Sequence[Measurement], block: str, method: str, defaults: Mapping[str, str]
) -> dict[str, tuple[SensitivityPoint, ...]]:
    items = series_of(measurements, block, method)
    names = common_benchmarks(items)
    points: dict[str, list[SensitivityPoint]] = {}
    for axis in in_order((key for item in items for key in item.settings if len(item.settings) == 1), AXES):
        for item in items:
            estimate = average(item, names, dict.fromkeys(names, "pass@1"))
            # Several weights under one name would be several points at one value.
            if estimate is not None and set(item.settings) <= {axis} and not item.which:
                value = plain(item.settings.get(axis, defaults.get(axis, "default")))
                point = SensitivityPoint(value=value, estimate=estimate, is_default=not item.settings)
                points.setdefault(axis, []).append(point)
    return {
        axis: tuple(sorted(found, key=lambda point: value_place(point.value)))
        for axis, found in points.items()
        if len(found) > 1
    }


def _panel(axes: Axes, panel: SensitivityPanel) -> None:
    style = KNOWN[METHODS["apo"]]
    values = sorted({point.value for point in (*panel.points, *panel.published)}, key=value_place)
    for points, hollow in ((panel.published, True), (panel.points, False)):
        if not points:
            continue
        x = [values.index(point.value) for point in points]
        y, low, high = ends([point.estimate for point in points], scale=100)
        axes.vlines(x, low, high, color=style.color, alpha=0.35, linewidth=1.2)
        axes.plot(x, y, ":" if hollow else "-", color=style.color, linewidth=0.8 if hollow else 1.3, zorder=3)
        for point, at, height in zip(points, x, y, strict=True):
            axes.plot(
                at,
                height,
                marker="*" if point.is_default else style.marker,
                markersize=10 if point.is_default else 5,
                markerfacecolor="white" if hollow else style.color,
                markeredgecolor=style.color if hollow else "white",
                markeredgewidth=0.9 if hollow else 0.5,
                linestyle="none",
                zorder=4,
            )
    axes.set_xticks(range(len(values)), values)
    for label, value in zip(axes.get_xticklabels(), values, strict=True):
        if any(point.is_default and point.value == value for point in panel.points):
            label.set(fontweight="bold", color=INK)
    axes.margins(x=0.12, y=0.14)

"""What all figures share: their size and settings, labels at line ends, and files with the same bytes every time."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from matplotlib.transforms import Bbox, BboxBase
from scipy.optimize import isotonic_regression

from apo_lab.reporting.style import COLUMN_INCHES, INK, PAGE_INCHES, QUIET, RC, Style
from apo_lightning.common.files import write_atomically

PNG_DOTS_PER_INCH = 300
LABEL_POINTS = 8.5
"""Height of one line of a label."""
# Without these a file would name the day and the version of matplotlib, and differ where the picture does not.
_NO_METADATA = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}

styled = rc_context(dict(RC))
"""Decorator: draw under the settings of `style.RC`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLabel:
    """A name at the end of a line."""

    text: str
    x: float
    y: float
    """The y at which the line ends, in data coordinates."""
    color: str


def panels(count: int, *, height: float, most_columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows; one alone is as wide as a column, more share the page.

    Args:
        count: at least 1.
        height: of a row [inches].
        most_columns: of a row.
    """
    num_columns = min(most_columns, count)
    num_rows = -(-count // num_columns)
    figure = Figure(figsize=(PAGE_INCHES if count > 1 else COLUMN_INCHES, height * num_rows + 0.3))
    grid = figure.subplots(num_rows, num_columns, squeeze=False).flatten().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def encode(figure: Figure, file_format: str) -> bytes:
    """The figure as "pdf", "svg" or "png"; the same bytes for the same figure."""
    buffer = io.BytesIO()
    with rc_context(dict(RC)):
        figure.savefig(buffer, format=file_format, dpi=PNG_DOTS_PER_INCH, metadata=_NO_METADATA[file_format])
    content = buffer.getvalue()
    if file_format == "svg":
        # Text stays text there. Verdana has DejaVu's widths, so labels fit where DejaVu is not installed.
        content = content.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, sans-serif")
    return content


def save(figure: Figure, stem: Path) -> tuple[Path, ...]:
    """Write `stem`.pdf (for a paper), .svg and .png; returns the paths."""
    paths = tuple(stem.with_name(f"{stem.name}.{file_format}") for file_format in _NO_METADATA)
    for path in paths:
        write_atomically(path, encode(figure, path.suffix[1:]))
    return paths


def inline_svg(figure: Figure, name: str) -> str:
    """An `<svg>` element for a page; `name` goes before its ids, which must not meet those of the page's others."""
    text = encode(figure, "svg").decode()
    text = text[text.index("<svg") :]
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text).strip()


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights moved apart, as little as possible (least squares), until no two are closer than `gap`.

    With the gaps taken off this is isotonic regression: neighbours that collide share their mean.

    Example:
        >>> spread([0.5, 0.5, 0.0], gap=0.25)
        [0.375, 0.625, 0.0]
    """
    order = np.argsort(heights, kind="stable")
    gaps = gap * np.arange(len(heights))
    moved = np.empty(len(heights))
    moved[order] = isotonic_regression(np.asarray(heights)[order] - gaps).x + gaps
    return moved.tolist()


def label_ends(axes: Axes, labels: Sequence[EndLabel]) -> None:
    """Write each label next to the end of its line, with a thin leader where it was moved to avoid another.

    Call it last: what is drawn later may move the ends.
    """
    if not labels:
        return
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    # In shares of the axes: room for the labels is taken from its width, after this.
    to_axes = axes.transData + axes.transAxes.inverted()
    gap = LABEL_POINTS / 72 * figure.dpi / axes.get_window_extent().height
    ends = [float(to_axes.transform((label.x, label.y))[1]) for label in labels]
    heights = spread(ends, gap)
    lowered = max(0.0, max(heights) - 1)
    for label, height in zip(labels, heights, strict=True):
        leader = {"arrowstyle": "-", "color": label.color, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 2}
        axes.annotate(
            label.text,
            (label.x, label.y),
            xytext=(1.04, height - lowered),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            color=INK,
            arrowprops=leader,
            annotation_clip=False,
        )


def label_points(axes: Axes, labels: Sequence[EndLabel], avoid: Sequence[tuple[float, float]] = ()) -> None:
    """Write each label next to its point, on the side where it covers the least of other labels and points.

    Call it last: what is drawn later may move the points.

    Args:
        axes: where the points are.
        labels: what to write.
        avoid: further places, in data, that labels should leave free.
    """
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    places = [axes.transData.transform(place).tolist() for place in [*((label.x, label.y) for label in labels), *avoid]]
    marks = [Bbox.from_bounds(x - 4 * scale, y - 4 * scale, 8 * scale, 8 * scale) for x, y in places]
    taken: list[BboxBase] = []
    for index, label in enumerate(labels):
        text = axes.annotate(
            label.text, (label.x, label.y), xytext=(0, 0), textcoords="offset points", fontsize=7, zorder=40
        )
        size, others = text.get_window_extent(), [*taken, *marks[:index], *marks[index + 1 :]]
        boxes = [_beside(places[index], size, side, scale) for side in _SIDES]
        # What a label covers costs its area [square dots]; what lies outside of the axes costs four times as much.
        inside = axes.get_window_extent()
        costs = [
            sum(_overlap(box, other) for other in others) + 4 * (box.width * box.height - _overlap(box, inside))
            for box in boxes
        ]
        best = costs.index(min(costs))
        text.set(ha=_SIDES[best][0], va=_SIDES[best][1], position=_SIDES[best][2:])
        taken.append(boxes[best])


_SIDES = (
    ("left", "center", 6, 0),
    ("right", "center", -6, 0),
    ("center", "bottom", 0, 5),
    ("center", "top", 0, -5),
    ("left", "bottom", 4, 4),
    ("left", "top", 4, -4),
    ("right", "bottom", -4, 4),
    ("right", "top", -4, -4),
)
"""Horizontal and vertical alignment and offset [points] of a label, the preferred first."""


def _beside(point: Sequence[float], size: BboxBase, side: tuple[str, str, int, int], scale: float) -> Bbox:
    x = point[0] + side[2] * scale - {"left": 0, "center": size.width / 2, "right": size.width}[side[0]]
    y = point[1] + side[3] * scale - {"bottom": 0, "center": size.height / 2, "top": size.height}[side[1]]
    return Bbox.from_bounds(x, y, size.width, size.height)


def _overlap(one: BboxBase, other: BboxBase) -> float:
    """Area that both cover [square dots]."""
    shared = Bbox.intersection(one, other)
    return 0.0 if shared is None else shared.width * shared.height


def filled_and_hollow() -> list[Line2D]:
    """Legend entries: filled markers were measured here, hollow ones were published."""
    shared = {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgecolor": QUIET}
    return [
        Line2D([], [], markerfacecolor=QUIET, label="measured", **shared),
        Line2D([], [], markerfacecolor="white", label="published", **shared),
    ]


def count_steps(axes: Axes) -> None:
    """The x axis counts training steps."""
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))


def log2_axis(axes: Axes, name: str) -> None:
    """The x axis doubles from tick to tick, or quadruples where it is long."""
    axes.set_xscale("log", base=2)
    largest = max(1, int(axes.dataLim.x1))
    powers = [2**power for power in range(largest.bit_length())]
    shown = powers if len(powers) <= 6 else powers[::2]
    axes.set_xticks(shown, [f"{power}" for power in shown])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{name} (log scale)")


def method_legend(figure: Figure, styles: Mapping[str, Style], seen: Iterable[str]) -> None:
    """One legend below all panels, of the methods that are seen in any, in the order of the tables."""
    shown = set(seen)
    known = [style for method, style in styles.items() if method in shown]
    handles = [Line2D([], [], **style.marked_line, label=style.label, linewidth=1.2) for style in known]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(6, len(handles)))

"""What all figures share: their size and settings, labels at line ends, and files with the same bytes every time."""

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter
from numpy.typing import ArrayLike
from scipy.optimize import isotonic_regression

from apo_lab.reporting.style import COLUMN_INCHES, INK, PAGE_INCHES, QUIET, Style
from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.records import Estimate

PNG_DOTS_PER_INCH = 300
LABEL_POINTS = 8.5
"""Height of one line of a label."""
# Without these a file would name the day and the version of matplotlib, and differ where the picture does not.
_NO_METADATA = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}

RC = rc_params_from_file(Path(__file__).with_name("report.mplstyle"), use_default_template=False)
"""Settings of matplotlib under which every figure is drawn *and* saved: ticks are made as late as that."""
styled = rc_context(RC)
"""Decorator: draw under the settings of `RC`."""


@dataclass(frozen=True)
class NamedFigure:
    """A figure with the stem of its files, its title and caption; nothing is added to it any more."""

    name: str
    title: str
    caption: str
    figure: Figure

    @cached_property
    def placed(self) -> Figure:
        """The figure with its parts in place, which to find again for each format would double the time."""
        with rc_context(RC):
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine(None)
        return self.figure

    @cached_property
    def svg(self) -> bytes:
        """Encoded once, for its file and for the page."""
        return encode(self.placed, "svg")


class EndLabel(NamedTuple):
    """A name at the end of a line, which is at (x, y) in data coordinates."""

    text: str
    x: float
    y: float
    color: str


def panels(count: int, *, height: float, most_columns: int = 3) -> tuple[Figure, list[Axes]]:
    """A figure with `count` axes in rows of a height [inches]; one alone fills a column, more share the page."""
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
    with rc_context(RC):
        figure.savefig(buffer, format=file_format, dpi=PNG_DOTS_PER_INCH, metadata=_NO_METADATA[file_format])
    return _shortened(buffer.getvalue().decode()).encode() if file_format == "svg" else buffer.getvalue()


def _shortened(svg: str) -> str:
    """An SVG with coordinates to 0.01 points, and without indentation and rotations by 0: two thirds of its bytes.

    Text stays text. Verdana has DejaVu's widths, so labels fit where DejaVu is not installed.
    """
    svg = re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"|(?<=\n) +| +(?=\n)', "", svg)
    return svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")


def save(named: NamedFigure, folder: Path) -> tuple[Path, ...]:
    """Write `<name>.pdf` (for a paper), .svg and .png; returns the paths."""
    paths = tuple(folder / f"{named.name}.{file_format}" for file_format in _NO_METADATA)
    for path in paths:
        file_format = path.suffix[1:]
        write_atomically(path, named.svg if file_format == "svg" else encode(named.placed, file_format))
    return paths


def inline_svg(named: NamedFigure) -> str:
    """An `<svg>` element for a page; its name goes before its ids, which must not meet those of the page's others."""
    text = named.svg.decode()
    text = text[text.index("<svg") :]
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{named.name}-", text).strip()


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights moved apart, as little as possible (least squares), until no two are closer than `gap`.

    With the gaps taken off this is isotonic regression: neighbours that collide share their mean.
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


def per_cent(estimates: Iterable[Estimate]) -> Float[np.ndarray, "3 estimates"]:
    """Values, lower and upper ends of fractions [%]."""
    return 100 * np.array([(estimate.value, estimate.low, estimate.high) for estimate in estimates]).T


def draw_band(axes: Axes, x: ArrayLike, y: Float[np.ndarray, "3 points"], style: Style, **line: Any) -> EndLabel:
    """A method's line within its band, `y` being middle, low and high; returns its name at the line's end."""
    middle, low, high = y
    if np.any(high > low):
        axes.fill_between(x, low, high, color=style.color, alpha=0.13, linewidth=0, zorder=2)
    axes.plot(x, middle, **{**style.marked_line, "markersize": 3.5, "zorder": 3 + style.rank, **line})
    return EndLabel(text=style.label, x=float(np.asarray(x)[-1]), y=float(middle[-1]), color=style.color)


def filled_and_hollow() -> list[Line2D]:
    """Legend entries: filled markers were measured here, hollow ones were published."""
    shared = {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgecolor": QUIET}
    fills = (("measured", QUIET), ("published", "white"))
    return [Line2D([], [], markerfacecolor=fill, label=label, **shared) for label, fill in fills]


def count_steps(axes: Axes) -> None:
    """The x axis counts training steps."""
    axes.set_xlabel("training step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))


def log2_axis(axes: Axes, name: str) -> None:
    """The x axis doubles from tick to tick, or quadruples where it is long."""
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=6))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(f"{name} (log scale)")


def ticks_in_per_cent(*axes: Axis) -> None:
    """An axis of shares has its ticks in per cent."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}%"))


def method_legend(figure: Figure, styles: Mapping[str, Style], seen: Iterable[str], *, most_columns: int = 6) -> None:
    """One legend below all panels, of the methods that are seen in any, in the order of the tables."""
    shown = set(seen)
    known = [style for method, style in styles.items() if method in shown]
    handles = [Line2D([], [], **style.marked_line, label=style.label, linewidth=1.2) for style in known]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(most_columns, len(handles)))

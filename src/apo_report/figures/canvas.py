"""What all figures share: size and settings, panels, bands and legends, and files with the same bytes every time."""

import io
import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib import rc_context, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter
from numpy.typing import ArrayLike

from apo_lightning.common.files import write_atomically
from apo_lightning.evaluation.records import Estimate
from apo_report.style import COLUMN_INCHES, PAGE_INCHES, QUIET, Style

PNG_DOTS_PER_INCH = 300
DOTTED = (1.0, 1.3)
ROW_INCHES = 0.14
"""Height of a row of a legend."""
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
    def svg(self) -> bytes:
        """Encoded once, for its file and for the page."""
        return encode(self.figure, "svg")


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


def save(named: NamedFigure, folder: Path) -> tuple[Path, ...]:
    """Write `<name>.pdf` (for a paper), .svg and .png; returns the paths."""
    paths = tuple(folder / f"{named.name}.{file_format}" for file_format in _NO_METADATA)
    for path in paths:
        file_format = path.suffix[1:]
        write_atomically(path, named.svg if file_format == "svg" else encode(named.figure, file_format))
    return paths


def inline_svg(named: NamedFigure) -> str:
    """An `<svg>` element for a page; its name goes before its ids, which must not meet those of the page's others."""
    text = named.svg.decode()
    text = text[text.index("<svg") :]
    return re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{named.name}-", text).strip()


def per_cent(estimates: Iterable[Estimate]) -> Float[np.ndarray, "3 estimates"]:
    """Values, lower and upper ends of fractions [%]."""
    return 100 * np.array([(estimate.value, estimate.low, estimate.high) for estimate in estimates]).T


def draw_band(axes: Axes, x: ArrayLike, y: Float[np.ndarray, "3 points"], style: Style, **line: Any) -> None:
    """A method's line within its band, `y` being middle, low and high."""
    middle, low, high = y
    if np.any(high > low):
        axes.fill_between(x, low, high, color=style.color, alpha=0.13, linewidth=0, zorder=2)
    axes.plot(x, middle, **{**style.marked_line, "markersize": 3.5, "zorder": 3 + style.rank, **line})


def draw_mean(
    axes: Axes,
    levels: Float[np.ndarray, "levels"],
    curves: Float[np.ndarray, "levels runs"],
    *,
    marker: str = "",
    **line: Any,
) -> None:
    """The mean over runs: solid up to the last level that all runs reach, which has the marker, then dotted."""
    counts, is_whole = np.isfinite(curves).sum(1), np.isfinite(curves).all(1)
    mean = np.where(counts > 0, np.nansum(curves, axis=1) / np.maximum(counts, 1), np.nan)
    axes.plot(levels, np.where(is_whole, mean, np.nan), linestyle="-", **line)
    last = int(is_whole.sum()) - 1
    axes.plot(levels[max(last, 0) :], mean[max(last, 0) :], linestyle=(0, DOTTED), **{**line, "label": ""})
    if last >= 0 and marker:
        look = {"markersize": 4, "zorder": 30 + line["zorder"]}
        axes.plot(levels[last], mean[last], marker, color=line["color"], **look)


def filled_and_hollow() -> list[Line2D]:
    """Legend entries: filled markers were measured here, hollow ones were published."""
    shared = {"linestyle": "none", "marker": "o", "markersize": 5, "markeredgecolor": QUIET}
    fills = (("measured", QUIET), ("published", "white"))
    return [Line2D([], [], markerfacecolor=fill, label=label, **shared) for label, fill in fills]


def ticks_in_per_cent(*axes: Axis, unit: str = "%") -> None:
    """An axis of shares has its ticks in per cent; one of differences in points, without the sign (unit "")."""
    for axis in axes:
        axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.3g}{unit}"))


def method_legend(figure: Figure, styles: Mapping[str, Style], seen: Iterable[str], *, most_columns: int = 6) -> None:
    """One legend below all panels, of the methods that are seen in any, in the order of `styles`; a style once."""
    shown = set(seen)
    known = dict.fromkeys(style for method, style in styles.items() if method in shown)
    handles = [Line2D([], [], **style.marked_line, label=style.label, linewidth=1.2) for style in known]
    legend_below(figure, handles, most_columns=most_columns)


def legend_below(figure: Figure, handles: Sequence[Line2D], *, most_columns: int) -> None:
    """One legend below all panels: long names take fewer columns or several lines, by which the figure grows."""
    most, num_lines = min(most_columns, len(handles)), len(handles)
    columns, excess = most, 1.0
    for columns in range(most, 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        excess = legend.get_window_extent().width / figure.bbox.width
        if excess <= 1:
            break
        legend.remove()
    else:
        labels = [str(handle.get_label()) for handle in handles]
        # Of the width some is the sample of the line.
        wrapped = [textwrap.fill(label, int(0.9 * max(map(len, labels)) / excess)) for label in labels]
        figure.legend(handles=handles, labels=wrapped, loc="outside lower center", ncols=1)
        num_lines = sum(label.count("\n") + 1 for label in wrapped)
    more_rows = math.ceil(num_lines / columns) - math.ceil(len(handles) / most)
    figure.set_figheight(figure.get_figheight() + ROW_INCHES * more_rows)


def _shortened(svg: str) -> str:
    """An SVG with coordinates to 0.01 points, and without indentation and rotations by 0: two thirds of its bytes.

    Text stays text, and is as it was: a tick's 0.125 is no coordinate. Verdana has DejaVu's widths, so labels fit where
    DejaVu is not installed.
    """

    def in_tag(tag: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), tag[0])

    svg = re.sub("<[^>]*>", in_tag, svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*\)"|(?<=\n) +| +(?=\n)', "", svg)
    return svg.replace("'DejaVu Sans'", "'DejaVu Sans', Verdana, sans-serif")

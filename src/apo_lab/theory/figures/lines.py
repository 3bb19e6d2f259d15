"""Styles and curves shared by the figures: the methods' colours are those of the reports."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes

from apo_lab.reporting.names import METHODS
from apo_lab.reporting.style import KNOWN, QUIET

GRPO, NSR, KL, APO, NAIVE = (KNOWN[METHODS[algo]] for algo in ("grpo", "nsr", "grpo_kl", "apo", "apo_naive"))
"""Styles of the methods that the figures compare."""
LABEL_HEIGHT = 0.085
"""Of a name at the end of a line, as a share of the height of the axes."""
Curve = tuple[str, Mapping[str, Any], torch.Tensor]
"""A name, keywords of `Axes.plot`, and the values over x."""


def curves(
    axes: Axes, title: str, xlabel: str, ylabel: str, x: Sequence[float], shown: Iterable[Curve], **settings: Any
) -> None:
    """Draw curves over one x, each named at its end, with further `settings` of `Axes.set`; call it last."""
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel, **settings)
    ends = []
    for name, look, values in shown:
        axes.plot(x, values, zorder=3, **look)
        ends.append((float(values[-1]), name))
    axes.get_ylim()  # chooses the limits, on which the heights below depend
    to_axes, last = axes.transData + axes.transAxes.inverted(), -1.0
    for y, name in sorted(ends):
        height = max(to_axes.transform((x[-1], y))[1], last + LABEL_HEIGHT)
        leader = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 2}
        place = {"xytext": (1.04, height), "textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(name, (x[-1], y), fontsize=7, arrowprops=leader, **place)
        last = height

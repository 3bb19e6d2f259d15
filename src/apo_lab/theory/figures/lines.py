"""Styles and curves shared by the figures: the methods' colours are those of the reports."""

from collections.abc import Sequence

from matplotlib.axes import Axes

from apo_lab.reporting.figures.canvas import EndLabel
from apo_lab.reporting.names import METHODS
from apo_lab.reporting.style import KNOWN, Style

GRPO, NSR, KL, APO, NAIVE = (KNOWN[METHODS[algo]] for algo in ("grpo", "nsr", "grpo_kl", "apo", "apo_naive"))
"""Styles of the methods that the figures compare."""


def line(axes: Axes, x: Sequence[float], y: Sequence[float], style: Style, label: str) -> EndLabel:
    """Draw a curve in a method's colour and dash; returns the label for its end."""
    axes.plot(x, y, color=style.color, linestyle=style.linestyle, zorder=3 + style.rank)
    return EndLabel(text=label, x=x[-1], y=y[-1], color=style.color)


def points(axes: Axes, x: Sequence[float], y: Sequence[float], style: Style, label: str) -> EndLabel:
    """Draw a curve with a marker at every measured point; returns the label for its end."""
    axes.plot(x, y, color=style.color, linestyle=style.linestyle, marker=style.marker, zorder=3)
    return EndLabel(text=label, x=x[-1], y=y[-1], color=style.color)

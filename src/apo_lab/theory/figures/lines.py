"""Styles and curves shared by the figures: the methods' colours are those of the reports."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes

from apo_lab.reporting.figures.canvas import EndLabel, label_ends
from apo_lab.reporting.names import METHODS
from apo_lab.reporting.style import KNOWN

GRPO, NSR, KL, APO, NAIVE = (KNOWN[METHODS[algo]] for algo in ("grpo", "nsr", "grpo_kl", "apo", "apo_naive"))
"""Styles of the methods that the figures compare."""
Curve = tuple[str, Mapping[str, Any], torch.Tensor]
"""A name, keywords of `Axes.plot`, and the values over x."""


def curves(
    axes: Axes, title: str, xlabel: str, ylabel: str, x: Sequence[float], shown: Iterable[Curve], **settings: Any
) -> None:
    """Draw curves over one x, each named at its end, with further `settings` of `Axes.set`; call it last."""
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel, **settings)
    labels = []
    for name, look, values in shown:
        (drawn,) = axes.plot(x, values, zorder=3, **look)
        labels.append(EndLabel(text=name, x=x[-1], y=float(values[-1]), color=str(drawn.get_color())))
    label_ends(axes, labels)

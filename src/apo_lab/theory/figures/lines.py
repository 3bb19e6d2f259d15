"""Styles and curves shared by the figures: the methods' colours are those of the reports."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes

from apo_lab.reporting.names import METHODS
from apo_lab.reporting.style import KNOWN

GRPO, NSR, KL, APO, NAIVE = (KNOWN[METHODS[algo]] for algo in ("grpo", "nsr", "grpo_kl", "apo", "apo_naive"))
"""Styles of the methods that the figures compare."""
Curve = tuple[str, Mapping[str, Any], torch.Tensor]
"""A name, keywords of `Axes.plot`, and the values over x."""


def curves(
    axes: Axes, title: str, xlabel: str, ylabel: str, x: Sequence[float], shown: Iterable[Curve], **settings: Any
) -> None:
    """Draw curves over one x, named next to the axes, with further `settings` of `Axes.set`."""
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel, **settings)
    for name, look, values in shown:
        axes.plot(x, values, zorder=3, label=name, **look)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))

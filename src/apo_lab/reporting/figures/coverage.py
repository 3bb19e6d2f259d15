"""Recall of worked solutions among a model's K most likely tokens."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import log2_axis, styled
from apo_lab.reporting.names import BASE
from apo_lab.reporting.records import Covered
from apo_lab.reporting.style import COLUMN_INCHES, QUIET, styles_of


@styled
def coverage_figure(covered: Sequence[Covered], published: Mapping[str, Mapping[int, float]] | None = None) -> Figure:
    """Recall of the next token of a worked solution against K, a line a model with its 95 % interval as a band.

    A policy that can sample the model's K most likely tokens only cannot produce the tokens above the line. Hollow
    markers on a dotted line are published numbers.

    Source: APO paper, table "Oracle Coverage Analysis".

    Args:
        covered: measured here; the models get styles of their own, for these lines are models, not methods.
        published: by printed model name, recall [fraction] by K.
    """
    figure = Figure(figsize=(COLUMN_INCHES, 2.3))
    axes = figure.subplots()
    names = [_name(item) for item in covered]
    styles = styles_of(names)
    for name, item in zip(names, covered, strict=True):
        style, ks = styles[name], sorted(item.result.recall)
        values, low, high = (
            100 * np.array([getattr(item.result.recall[k], end) for k in ks]) for end in ("value", "low", "high")
        )
        axes.fill_between(ks, low, high, color=style.color, alpha=0.15, linewidth=0)
        axes.plot(ks, values, **style.marked_line, markersize=4, label=name)
    for model, recall in (published or {}).items():
        ks = sorted(recall)
        values = [100 * recall[k] for k in ks]
        hollow = {"marker": "o", "markerfacecolor": "white", "markersize": 5, "linestyle": ":", "linewidth": 1}
        axes.plot(ks, values, color=QUIET, label=f"{model}, published", **hollow, zorder=4)
    axes.set_title("Solution tokens among the K most likely")
    axes.set_ylabel("recall [%]")
    axes.set_ylim(top=100.5)
    log2_axis(axes, "K")
    axes.legend(loc="best")
    return figure


def _name(item: Covered) -> str:
    return item.model if item.method == BASE else f"{item.model}, {item.method}"

"""Recall of worked solutions among a model's K most likely tokens."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import log2_axis, panels, styled
from apo_lab.reporting.names import BASE, model_name
from apo_lab.reporting.published import published
from apo_lab.reporting.records import Covered
from apo_lab.reporting.style import QUIET, styles_of


@styled
def coverage_figure(covered: Sequence[Covered]) -> Figure:
    """Recall of the next token of a worked solution against K, a line a model with its 95 % interval as a band.

    A policy that can sample the model's K most likely tokens only cannot produce the tokens above the line. Hollow
    markers on a dotted line are the published numbers. Styles are the models' own, for these lines are no methods.

    Source: APO paper, table "Oracle Coverage Analysis".
    """
    figure, (axes,) = panels(1, height=2.0)
    names = [item.model if item.method == BASE else f"{item.model}, {item.method}" for item in covered]
    styles = styles_of(names)
    for name, item in zip(names, covered, strict=True):
        ks = sorted(item.result.recall)
        values, low, high = 100 * np.array([[e.value, e.low, e.high] for e in map(item.result.recall.get, ks)]).T
        axes.fill_between(ks, low, high, color=styles[name].color, alpha=0.15, linewidth=0)
        axes.plot(ks, values, **styles[name].marked_line, markersize=4, label=name)
    recall = [cell for cell in published("coverage") if cell.metric.startswith("recall@")]
    ks = [int(cell.metric.removeprefix("recall@")) for cell in recall]
    hollow = {"marker": "o", "markerfacecolor": "white", "markersize": 5, "linestyle": ":", "linewidth": 1}
    label = f"{model_name(recall[0].model)}, published"
    axes.plot(ks, [cell.value for cell in recall], color=QUIET, label=label, **hollow, zorder=4)
    axes.set_title("Solution tokens among the K most likely")
    axes.set_ylabel("recall [%]")
    axes.set_ylim(top=100.5)
    log2_axis(axes, "K")
    axes.legend(loc="best")
    return figure

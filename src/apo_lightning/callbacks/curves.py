"""`curves.png`: reward, pass@k and entropy over a run, in three panels."""

import io
import itertools

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apo_lightning.callbacks.run_history import RunHistory

BLACK, GREY, PALE = "#222222", "#777777", "#cccccc"
STEPS_PER_WINDOW = 20


def curves_png(history: RunHistory) -> bytes:
    """The figure, as PNG.

    Thin lines are steps, thick ones their moving mean over a twentieth of the run; circles are held-out problems.
    Dashes and markers tell curves apart, so a print in grey is readable.
    """
    # Without pyplot: it needs a display, and its global list would keep the figure alive.
    figure = Figure(figsize=(11, 3.2), dpi=150, layout="constrained")
    reward, accuracy, entropy = figure.subplots(1, 3, sharex=True)
    _curve(reward, history, "train/reward", BLACK, "-")
    _curve(entropy, history, "train/entropy", BLACK, "-")
    _curve(accuracy, history, "train/pass@1", BLACK, "-")
    if history.group_size > 1:
        _curve(accuracy, history, f"train/pass@{history.group_size}", GREY, "--")
    for marker, (name, passes) in zip(itertools.cycle("os^Dv"), history.validations.items()):
        steps = sorted(passes)
        values = [passes[step].metrics.get(f"val/{name}/pass@1", np.nan) for step in steps]
        style = {"marker": marker, "markerfacecolor": "white", "markersize": 5, "linewidth": 1}
        accuracy.plot(steps, values, ":", color=BLACK, label=f"held-out {name}", **style)
    for axes, title in ((reward, "reward"), (accuracy, "pass@k"), (entropy, "entropy [nats]")):
        _finish(axes, title)
    accuracy.set_ylim(0, 1.02)
    if accuracy.get_legend_handles_labels()[1]:
        accuracy.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    # Otherwise the file would contain the version of matplotlib and differ where the figure does not.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _curve(axes: Axes, history: RunHistory, key: str, color: str, dash: str) -> None:
    """Draw one metric, where it has a value."""
    steps, logged = history.series(key)
    # Without the gaps: a metric of every fifth step would be dashes.
    values = pd.Series(logged, steps, dtype=float).replace([np.inf, -np.inf], np.nan).dropna()
    if values.empty:
        return
    smooth = values.rolling(max(1, len(values) // STEPS_PER_WINDOW), min_periods=1).mean()
    axes.plot(values.index, values, color=PALE, linewidth=0.8)
    # A line through one step would be invisible.
    marker = "." if len(values) == 1 else None
    axes.plot(values.index, smooth, dash, color=color, linewidth=1.8, marker=marker, label=key.removeprefix("train/"))


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.margins(y=0.12)

"""`curves.png`: reward, pass@k and entropy over a run, in three panels."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apo_lightning.callbacks.run_history import RunHistory
from apo_lightning.common.formatting import moving_mean

BLACK, GREY, PALE = "#222222", "#777777", "#cccccc"
STEPS_PER_WINDOW = 20


def curves_png(history: RunHistory) -> bytes:
    """The figure, as PNG.

    Thin lines are steps, thick ones their moving mean over a twentieth of the run; circles are held-out problems.
    Dashes and labels tell curves apart, so a print in grey is readable.
    """
    # Without pyplot: it needs a display, and its global list would keep the figure alive.
    figure = Figure(figsize=(11, 3.2), dpi=150, layout="constrained")
    reward, accuracy, entropy = figure.subplots(1, 3)
    _curve(reward, history, "train/reward", BLACK, "-")
    _curve(entropy, history, "train/entropy", BLACK, "-")
    ends = {"pass@1": _curve(accuracy, history, "train/pass@1", BLACK, "-")}
    if history.group_size > 1:
        name = f"pass@{history.group_size}"
        ends[name] = _curve(accuracy, history, f"train/{name}", GREY, "--")
    for name, passes in history.validations.items():
        steps = sorted(passes)
        values = [passes[step].metrics.get(f"val/{name}/pass@1", np.nan) for step in steps]
        accuracy.plot(steps, values, "o:", color=BLACK, markerfacecolor="white", markersize=5, linewidth=1)
        ends[f"held-out {name}"] = (float(steps[-1]), values[-1])
    for axes, title in ((reward, "reward"), (accuracy, "pass@k"), (entropy, "entropy [nats]")):
        _finish(axes, title)
    accuracy.set_ylim(0, 1.02)
    _label_ends(accuracy, ends)
    buffer = io.BytesIO()
    # Otherwise the file would contain the version of matplotlib and differ where the figure does not.
    figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """The heights, moved up where they are closer than `gap` to the one below, so that labels do not overlap.

    Example:
        >>> spread([0.5, 0.5, 0.0], gap=0.25)
        [0.5, 0.75, 0.0]
    """
    moved = list(heights)
    floor = -np.inf
    for index in np.argsort(heights, kind="stable"):
        moved[index] = max(moved[index], floor)
        floor = moved[index] + gap
    return moved


def _curve(axes: Axes, history: RunHistory, key: str, color: str, dash: str) -> tuple[float, float]:
    """Draw one metric; returns the end point of its line, NaN where it has no value."""
    steps, values = history.series(key)
    if not np.isfinite(values).any():
        return np.nan, np.nan
    smooth = moving_mean(values, max(1, len(values) // STEPS_PER_WINDOW))
    axes.plot(steps, values, color=PALE, linewidth=0.8)
    # A line through one step would be invisible.
    axes.plot(steps, smooth, dash, color=color, linewidth=1.8, marker="." if len(steps) == 1 else None)
    return float(steps[-1]), smooth[-1]


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, float]]) -> None:
    known = {label: end for label, end in ends.items() if np.isfinite(end).all()}
    heights = spread([height for _, height in known.values()], gap=0.065)
    right = max((step for step, _ in known.values()), default=0)
    for label, height in zip(known, heights, strict=True):
        axes.annotate(
            label, (right, height), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8, color=BLACK
        )


def _finish(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_xlabel("step", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#eeeeee", linewidth=0.8)
    axes.margins(y=0.12)

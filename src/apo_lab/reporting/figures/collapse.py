"""What training costs in coverage, step by step: each method's snapshots against the model that it began as."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import count_steps, method_legend, panels, styled
from apo_lab.reporting.names import BASE
from apo_lab.reporting.records import Measurement
from apo_lab.reporting.style import QUIET, Style
from apo_lab.reporting.trajectories import Trajectory
from apo_lightning.evaluation.records import Estimate

PANELS = (
    ("pass@1", "Pass@1"),
    ("pass@n", "Pass@{n}"),
    ("entropy", "Token entropy [nats]"),
    ("max_prob", "Max-prob"),
    ("support_coverage", "Support mass"),
)
"""Metric and title of each panel; n is the number of samples a problem."""


def collapse_panels(lines: Sequence[Trajectory]) -> list[tuple[str, str]]:
    """Metric and title of the panels that some line has a value for; pass@n once."""
    num_samples = lines[0].num_samples
    named = [(key.replace("@n", f"@{num_samples}"), title.replace("{n}", str(num_samples))) for key, title in PANELS]
    known = {key for line in lines for _, item in line.points for key in item.metrics}
    return [(key, title) for key, title in dict(named).items() if key in known]


@styled
def collapse_figure(lines: Sequence[Trajectory], styles: Mapping[str, Style]) -> Figure:
    """Pass@1, Pass@n, entropy, max-prob and support mass of a policy against the training step.

    Lines: snapshots, means over training seeds; bands: 95 % intervals. The model before training is a horizontal
    dotted line with a band of its own, drawn once.

    Args:
        lines: of one block, benchmark and number of samples.
        styles: of their methods.
    """
    shown = collapse_panels(lines)
    figure, grid = panels(len(shown), height=1.75)
    for axes, (key, title) in zip(grid, shown, strict=True):
        _draw_base(axes, next((line.base for line in lines if line.base is not None), None), key)
        for line in lines:
            _draw(
                axes,
                [(step, item.metrics[key]) for step, item in line.points if key in item.metrics],
                styles[line.method],
            )
        axes.set_title(title)
        axes.set_xlim(left=0)
        count_steps(axes)
    method_legend(figure, styles, {line.method for line in lines})
    return figure


def _draw_base(axes: Axes, base: Measurement | None, key: str) -> None:
    if base is None or key not in base.metrics:
        return
    estimate = base.metrics[key]
    axes.axhspan(estimate.low, estimate.high, color=QUIET, alpha=0.12, linewidth=0, zorder=1)
    axes.axhline(estimate.value, color=QUIET, linestyle=":", linewidth=1.2, zorder=2)
    axes.annotate(
        BASE,
        (1, estimate.value),
        xycoords=("axes fraction", "data"),
        xytext=(0, 1.5),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=6.5,
        color=QUIET,
    )


def _draw(axes: Axes, points: Sequence[tuple[int, Estimate]], style: Style) -> None:
    steps = [step for step, _ in points]
    low, high = [e.low for _, e in points], [e.high for _, e in points]
    axes.fill_between(steps, low, high, color=style.color, alpha=0.15, linewidth=0, zorder=2)
    axes.plot(
        steps,
        [e.value for _, e in points],
        color=style.color,
        linestyle=style.linestyle,
        marker=style.marker,
        markersize=3.5,
        zorder=3 + style.rank,
    )

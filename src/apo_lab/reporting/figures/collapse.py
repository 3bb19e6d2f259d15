"""Pass@1, Pass@n and entropy of a run's snapshots against the training step, with the model before training."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.averages import mean_over_seeds
from apo_lab.reporting.evaluations import STEP
from apo_lab.reporting.figures.canvas import count_steps, draw_band, ends, method_legend, panels, styled
from apo_lab.reporting.names import BASE
from apo_lab.reporting.records import Measurement
from apo_lab.reporting.style import QUIET, Style

PANELS = (
    ("pass@1", "Pass@1"),
    ("pass@{n}", "Pass@{n}"),
    ("entropy", "Token entropy [nats]"),
    ("max_prob", "Max-prob"),
    ("support_coverage", "Support mass"),
)
"""Metric and title of each panel; n is the number of samples a problem."""
Trajectories = Mapping[str, Mapping[int, Measurement]]
"""Method → training step, ascending → mean over training seeds. The policy before training is `Base`, at step 0."""


def trajectories(snapshots: Sequence[Measurement]) -> dict[tuple[str, str, int], Trajectories]:
    """The snapshots by block, benchmark and number of samples, averaged over training seeds step by step.

    A step that one of a method's seeds lacks is left out: a mean over other seeds would jump where no policy did.

    Args:
        snapshots: from `evaluations.snapshot_measurements`.

    Raises:
        ConfigError: measurements of one name and step are not training seeds measured alike.
    """
    found: dict[tuple[str, str, int], dict[str, dict[int, Measurement]]] = defaultdict(lambda: defaultdict(dict))
    for item in sorted(mean_over_seeds(snapshots), key=lambda item: int(item.settings[STEP])):
        plain = replace(item, settings={name: value for name, value in item.settings.items() if name != STEP})
        found[item.block, item.benchmark, item.num_samples][plain.name][int(item.settings[STEP])] = plain
    return {where: {name: _of_every_seed(points) for name, points in lines.items()} for where, lines in found.items()}


def _of_every_seed(points: Mapping[int, Measurement]) -> dict[int, Measurement]:
    num_seeds = max(len(item.policies) for item in points.values())
    return {step: item for step, item in points.items() if len(item.policies) == num_seeds}


@styled
def collapse_figure(lines: Trajectories, styles: Mapping[str, Style], num_samples: int) -> Figure:
    """Pass@1, Pass@n, entropy, max-prob and support mass of a policy against the training step, where measured.

    Lines: snapshots, means over training seeds; bands: 95 % intervals. The model before training is a horizontal
    dotted line with a band of its own.
    """
    known = {key for points in lines.values() for item in points.values() for key in item.metrics}
    named = {key.format(n=num_samples): title.format(n=num_samples) for key, title in PANELS}
    shown = {key: title for key, title in named.items() if key in known}
    figure, grid = panels(len(shown), height=1.75)
    for axes, (key, title) in zip(grid, shown.items(), strict=True):
        for method, points in lines.items():
            measured = {step: item.metrics[key] for step, item in points.items() if key in item.metrics}
            if method == BASE and measured:
                _draw_base(axes, *ends(measured.values())[:, 0])
            elif measured:
                draw_band(axes, list(measured), ends(measured.values()), styles[method])
        axes.set_title(title)
        axes.set_xlim(left=0)
        count_steps(axes)
    method_legend(figure, styles, lines.keys() - {BASE})
    return figure


def _draw_base(axes: Axes, value: float, low: float, high: float) -> None:
    axes.axhspan(low, high, color=QUIET, alpha=0.12, linewidth=0, zorder=1)
    axes.axhline(value, color=QUIET, linestyle=":", linewidth=1.2, zorder=2)
    axes.text(1, value, BASE, transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=7, color=QUIET)

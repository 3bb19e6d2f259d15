"""Pass@1, Pass@n and entropy of a run's snapshots against the training step, with the model before training."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

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
    ("pass@n", "Pass@{n}"),
    ("entropy", "Token entropy [nats]"),
    ("max_prob", "Max-prob"),
    ("support_coverage", "Support mass"),
)
"""Metric and title of each panel; n is the number of samples a problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The snapshots of one method on one benchmark."""

    block: str
    """Model and way of measuring, as `Measurement.block`."""
    benchmark: str
    method: str
    """The printed name of the method, with the settings in which it departs from its defaults."""
    num_samples: int
    """n completions a problem."""
    base: Measurement | None
    """The policy before training; None where it was not measured."""
    points: tuple[tuple[int, Measurement], ...]
    """(training step, mean over training seeds), by step; the steps that every seed has."""


def trajectories(measurements: Sequence[Measurement]) -> list[Trajectory]:
    """The snapshots of each method and benchmark, averaged over training seeds step by step.

    Args:
        measurements: from `evaluations.snapshot_measurements`.

    Raises:
        ConfigError: measurements of one name and step are not training seeds measured alike.
    """
    bases: dict[tuple[str, str, int], Measurement] = {}
    found: dict[tuple[str, str, int, str], list[tuple[int, Measurement]]] = defaultdict(list)
    for item in mean_over_seeds(measurements):
        plain = replace(item, settings={name: value for name, value in item.settings.items() if name != STEP})
        where = (item.block, item.benchmark, item.num_samples)
        if item.method == BASE:
            bases[where] = plain
        else:
            found[*where, plain.name].append((int(item.settings[STEP]), plain))
    return [
        Trajectory(
            block=block,
            benchmark=benchmark,
            method=method,
            num_samples=num_samples,
            base=bases.get((block, benchmark, num_samples)),
            points=_of_every_seed(points),
        )
        for (block, benchmark, num_samples, method), points in found.items()
    ]


def _of_every_seed(points: Sequence[tuple[int, Measurement]]) -> tuple[tuple[int, Measurement], ...]:
    """The steps that every seed has: a mean over other seeds at some steps would jump where no policy did."""
    num_seeds = max(len(item.policies) for _, item in points)
    return tuple(sorted((p for p in points if len(p[1].policies) == num_seeds), key=lambda point: point[0]))


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
    base = next((line.base for line in lines if line.base is not None), None)
    figure, grid = panels(len(shown), height=1.75)
    for axes, (key, title) in zip(grid, shown, strict=True):
        if base is not None and key in base.metrics:
            _draw_base(axes, *ends([base.metrics[key]])[:, 0])
        for line in lines:
            if measured := {step: item.metrics[key] for step, item in line.points if key in item.metrics}:
                draw_band(axes, list(measured), ends(measured.values()), styles[line.method])
        axes.set_title(title)
        axes.set_xlim(left=0)
        count_steps(axes)
    method_legend(figure, styles, {line.method for line in lines})
    return figure


def _draw_base(axes: Axes, value: float, low: float, high: float) -> None:
    axes.axhspan(low, high, color=QUIET, alpha=0.12, linewidth=0, zorder=1)
    axes.axhline(value, color=QUIET, linestyle=":", linewidth=1.2, zorder=2)
    axes.text(1, value, BASE, transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=7, color=QUIET)

"""How long a valid branch lasts, against the group size."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from apo_lab.reporting.figures.canvas import EndLabel, label_ends, panels, styled
from apo_lab.reporting.style import Style
from apo_lab.theory.figures.lines import APO, GRPO, NAIVE, NSR, points
from apo_lab.theory.trajectories import VISITS, course, first_step, neutral, two_valid
from apo_lightning import losses
from apo_lightning.advantages import AdvantageEstimator, GroupNormalized, SignedReward
from apo_lightning.losses import PolicyLoss

_REPLICATES = 60


@styled
def extinction_figure() -> Figure:
    """Left: steps until π_k < .001 under a likelier valid branch. Right: share extinct on a neutral prefix."""
    figure, (absolute, drift) = panels(2, height=2.3, most_columns=2)
    group = GroupNormalized()
    competing: list[tuple[Style, str, PolicyLoss, AdvantageEstimator]] = [
        (NSR, "NSR", losses.GRPO(), SignedReward()),
        (GRPO, "GRPO", losses.GRPO(), group),
        (APO, "APO", losses.APO(), group),
    ]
    labels: list[EndLabel] = []
    for style, name, loss, advantage in competing:
        medians = []
        for size in (4, 8, 16):
            runs = course(two_valid(), loss, advantage, group_size=size, eta=0.5, steps=VISITS, replicates=_REPLICATES)
            medians.append(first_step(runs.rare < 1e-3).clamp(max=VISITS).median().item())
        labels.append(points(absolute, [4, 8, 16], medians, style, name))
    _sizes(absolute, [4, 8, 16])
    absolute.set(ylabel="median steps until π < 0.001", ylim=(0, VISITS), title="A rarer valid branch")
    label_ends(absolute, labels)
    labels = []
    for style, name, loss in (
        (GRPO, "GRPO", losses.GRPO()),
        (APO, "APO", losses.APO()),
        (NAIVE, "APO, naive", losses.APO(exclude_sampled=False)),
    ):
        shares = []
        for size in (4, 8, 16):
            runs = course(neutral(), loss, group, group_size=size, eta=3.0, steps=VISITS, replicates=2 * _REPLICATES)
            shares.append((runs.rare[-1] < 1 / (size * VISITS)).to(torch.float64).mean().item())
        labels.append(points(drift, [4, 8, 16], shares, style, name))
    _sizes(drift, [4, 8, 16])
    drift.set(ylabel=f"extinct after {VISITS} visits", ylim=(0, 0.65), title="A branch on which nothing depends")
    drift.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    label_ends(drift, labels)
    return figure


def _sizes(axes: Axes, sizes: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{size}" for size in sizes])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("group size G (log scale)")

"""How long a valid branch lasts, against the group size."""

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.theory.figures.lines import APO, GRPO, NAIVE, NSR, curves
from apo_lab.theory.trajectories import NEUTRAL, TWO_VALID, VISITS, course, first_step
from apo_lightning import losses
from apo_lightning.advantages import AdvantageEstimator, GroupNormalized, SignedReward
from apo_lightning.losses import PolicyLoss

_SIZES, _REPLICATES = (4, 8, 16), 60


@styled
def extinction_figure() -> Figure:
    """Left: steps until π_k < .001 under a likelier valid branch. Right: share extinct on a neutral prefix."""
    figure, (absolute, drift) = panels(2, height=2.3, most_columns=2)
    for axes in (absolute, drift):
        axes.set_xscale("log", base=2)
        axes.set_xticks(_SIZES, [f"{size}" for size in _SIZES])
        axes.xaxis.set_minor_locator(NullLocator())
    drift.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    xlabel, group, nsr = "group size G (log scale)", GroupNormalized(), SignedReward()
    grpo, apo, naive = losses.GRPO(), losses.APO(), losses.APO(exclude_sampled=False)
    methods = (("NSR", NSR, grpo, nsr), ("GRPO", GRPO, grpo, group), ("APO", APO, apo, group))
    shown = [(name, style.marked_line, _median_steps(loss, advantage)) for name, style, loss, advantage in methods]
    ylabel = "median steps until π < 0.001"
    curves(absolute, "A rarer valid branch", xlabel, ylabel, _SIZES, shown, ylim=(0, VISITS))
    methods = (("GRPO", GRPO, grpo), ("APO", APO, apo), ("APO, naive", NAIVE, naive))
    shown = [(name, style.marked_line, _share_extinct(loss, group)) for name, style, loss in methods]
    title, ylabel = "A branch on which nothing depends", f"extinct after {VISITS} visits"
    curves(drift, title, xlabel, ylabel, _SIZES, shown, ylim=(0, 0.65))
    return figure


def _median_steps(loss: PolicyLoss, advantage: AdvantageEstimator) -> torch.Tensor:
    medians = []
    for size in _SIZES:
        rare, _ = course(TWO_VALID, loss, advantage, group_size=size, eta=0.5, replicates=_REPLICATES)
        medians.append(first_step(rare < 1e-3).clamp(max=VISITS).median())
    return torch.stack(medians)


def _share_extinct(loss: PolicyLoss, advantage: AdvantageEstimator) -> torch.Tensor:
    shares = []
    for size in _SIZES:
        rare, _ = course(NEUTRAL, loss, advantage, group_size=size, eta=3.0, replicates=2 * _REPLICATES)
        shares.append((rare[-1] < 1 / (size * VISITS)).double().mean())
    return torch.stack(shares)

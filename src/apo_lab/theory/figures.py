"""Figures of the theory in the style of the reports; no statement depends on them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, PercentFormatter
from torch import Tensor

from apo_lab.theory.expectations import GROUP, expected_force
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import bandit, dist
from apo_lab.theory.trajectories import NEUTRAL, TWO_VALID, VISITS, course, first_step, inner_steps, ratios
from apo_lightning import losses
from apo_lightning.advantages import AdvantageEstimator, SignedReward
from apo_lightning.losses import GRPOKL, PolicyLoss
from apo_report.figures.canvas import panels, styled
from apo_report.names import METHODS
from apo_report.style import HAIRLINE, INK, KNOWN, QUIET

GRPO, NSR, KL, APO, NAIVE = (KNOWN[METHODS[algo]] for algo in ("grpo", "nsr", "grpo_kl", "apo", "apo_naive"))
"""Styles of the methods that the figures compare."""
LABEL_HEIGHT = 0.085
"""Of a name at the end of a line, as a share of the height of the axes."""
Curve = tuple[str, Mapping[str, Any], torch.Tensor]
"""A name, keywords of `Axes.plot`, and the values over x."""


def curves(
    axes: Axes, title: str, xlabel: str, ylabel: str, x: Sequence[float], shown: Iterable[Curve], **settings: Any
) -> None:
    """Draw curves over one x, each named at its end, with further `settings` of `Axes.set`; call it last."""
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel, **settings)
    ends = []
    for name, look, values in shown:
        axes.plot(x, values, zorder=3, **look)
        ends.append((float(values[-1]), name))
    axes.get_ylim()  # chooses the limits, on which the heights below depend
    to_axes, last = axes.transData + axes.transAxes.inverted(), -1.0
    for y, name in sorted(ends):
        height = max(to_axes.transform((x[-1], y))[1], last + LABEL_HEIGHT)
        leader = {"arrowstyle": "-", "color": QUIET, "linewidth": 0.5, "shrinkA": 1, "shrinkB": 2}
        place = {"xytext": (1.04, height), "textcoords": "axes fraction", "va": "center", "annotation_clip": False}
        axes.annotate(name, (x[-1], y), fontsize=7, arrowprops=leader, **place)
        last = height


_ETA, _STEPS = 0.2, 349


@styled
def recovery_figure() -> Figure:
    """Left: repeated pushes on one error. Right: a prefix whose branches are equally good."""
    figure, (squeezing, recovery) = panels(2, height=2.3, most_columns=2)
    start, steps = dist(0.90, 0.05, 0.04, 0.01), 12
    path = inner_steps(start.log(), lambda z: token_forces(losses.GRPO(), z, start, 1), 0.5, steps).softmax(1)
    names = ("leader", "the error", "bystander", "rarer bystander")
    looks = [{"color": color} for color in (INK, GRPO.color, APO.color, QUIET)]
    looks[1]["linestyle"] = "--"
    shown = zip(names, looks, path.T, strict=True)
    xlabel = "pushes on the error (η = 0.5)"
    curves(squeezing, "Squeezing", xlabel, "probability", range(steps + 1), shown, yscale="log")
    time, apo, shown = [_ETA * step for step in range(_STEPS + 1)], losses.APO(anchor_size=2), []
    for rare in (0.3, 0.1, 0.03):
        recovery.axhline(min(2.5 * rare, 1 - rare), color=QUIET, linewidth=0.6, linestyle=":")
        shown.append((f"APO, Z = {rare:g}", APO.line, _minor_branch(apo, rare)))
    shown.append(("GRPO, Z = 0.03", GRPO.line, _minor_branch(losses.GRPO(), 0.03)))
    recovery.text(time[-1], 0.71, "caps min(1 − Z, κ·Z)", fontsize=6.5, color=QUIET, ha="right", va="bottom")
    ylabel = "probability of the minor branch"
    curves(recovery, "Elastic recovery", "time [η × steps]", ylabel, time, shown, ylim=(0, 0.79))
    return figure


def _minor_branch(loss: PolicyLoss, rare: float) -> Tensor:
    """π of a branch under the exact force, from its reference probability Z on; both branches have the same Q."""
    ref = dist(1 - rare, rare)
    problem = bandit(ref, dist(0.5, 0.5))
    path = inner_steps(ref.log()[None], lambda z: expected_force(problem, z, loss, GROUP), _ETA, _STEPS)
    return path[:, 0].softmax(1)[:, 1]


_FINE_ETA, _FINE_STEPS = 0.1, 250


@styled
def trust_region_figure() -> Figure:
    """Left: GRPO with KL(π‖π_ref) at several coefficients. Right: APO, the error and its anchors."""
    figure, (penalty, anchored) = panels(2, height=2.3, most_columns=2)
    old, ref = dist(0.30, 0.50, 0.20), dist(0.05, 0.55, 0.40)
    penalty.axhline(1 / 6, color=QUIET, linewidth=0.6, linestyle=":")
    penalty.text(_FINE_ETA * _FINE_STEPS * 0.02, 1 / 6 - 0.02, "π_ref/π_old", fontsize=6.5, color=QUIET, va="top")
    shown = [("no penalty", GRPO.line, ratios(losses.GRPO(), old, ref, _FINE_ETA, _FINE_STEPS)[:, 0])]
    for coef in (0.01, 0.1, 1.0):
        penalised = ratios(GRPOKL(kl_coef=coef, kl_estimator="full"), old, ref, _FINE_ETA, _FINE_STEPS)
        shown.append((f"KL × {coef:g}", KL.line, penalised[:, 0]))
    _draw(penalty, shown, "KL leaves the window", top=1.25)
    old, ref = dist(0.90, 0.05, 0.03, 0.02), dist(0.4, 0.2, 0.2, 0.2)
    held = ratios(losses.APO(anchor_size=4), old, ref, _FINE_ETA, _FINE_STEPS)
    quiet = {"color": QUIET, "linewidth": 1.0}
    names = {0: ("the error", APO.line), 1: ("likely anchor", quiet), 3: ("rare anchor", quiet)}
    shown = [(name, look, held[:, token]) for token, (name, look) in names.items()]
    _draw(anchored, shown, "APO's gate holds the error, not the anchors", top=1.05 * held.max().item())
    return figure


def _draw(axes: Axes, shown: Sequence[Curve], title: str, top: float) -> None:
    """Ratios over time, and the window 1 ± ε."""
    axes.axhspan(0.8, 1.2, color=HAIRLINE, zorder=0)
    axes.text(_FINE_ETA * _FINE_STEPS, 1.19, "1 ± ε", fontsize=6.5, color=QUIET, va="top", ha="right")
    time = [_FINE_ETA * step for step in range(_FINE_STEPS + 1)]
    xlabel, ylabel = "time within a rollout [η × steps]", "ratio to the old policy"
    curves(axes, title, xlabel, ylabel, time, shown, ylim=(0, top))


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
    xlabel = "group size G (log scale)"
    grpo, apo, naive = losses.GRPO(), losses.APO(), losses.APO(exclude_sampled=False)
    methods = (("NSR", NSR, grpo, SignedReward()), ("GRPO", GRPO, grpo, GROUP), ("APO", APO, apo, GROUP))
    shown = [(name, style.marked_line, _median_steps(loss, advantage)) for name, style, loss, advantage in methods]
    ylabel = "median steps until π < 0.001"
    curves(absolute, "A rarer valid branch", xlabel, ylabel, _SIZES, shown, ylim=(0, VISITS))
    methods = (("GRPO", GRPO, grpo), ("APO", APO, apo), ("APO, naive", NAIVE, naive))
    shown = [(name, style.marked_line, _share_extinct(loss)) for name, style, loss in methods]
    title, ylabel = "A branch on which nothing depends", f"extinct after {VISITS} visits"
    curves(drift, title, xlabel, ylabel, _SIZES, shown, ylim=(0, 0.65))
    return figure


def _median_steps(loss: PolicyLoss, advantage: AdvantageEstimator) -> torch.Tensor:
    medians = []
    for size in _SIZES:
        rare, _ = course(TWO_VALID, loss, advantage, group_size=size, eta=0.5, replicates=_REPLICATES)
        medians.append(first_step(rare < 1e-3).clamp(max=VISITS).median())
    return torch.stack(medians)


def _share_extinct(loss: PolicyLoss) -> torch.Tensor:
    shares = []
    for size in _SIZES:
        rare, _ = course(NEUTRAL, loss, GROUP, group_size=size, eta=3.0, replicates=2 * _REPLICATES)
        shares.append((rare[-1] < 1 / (size * VISITS)).double().mean())
    return torch.stack(shares)


FIGURES: Mapping[str, Callable[[], Figure]] = {
    "recovery": recovery_figure,
    "trust_region": trust_region_figure,
    "extinction": extinction_figure,
}
"""File stem → the function that draws the figure; the slowest is last."""

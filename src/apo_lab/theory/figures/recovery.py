"""Squeezing against elastic recovery."""

from matplotlib.figure import Figure
from torch import Tensor

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.reporting.style import INK, QUIET
from apo_lab.theory.expectations import expected_force
from apo_lab.theory.figures.lines import APO, GRPO, curves
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import bandit, dist
from apo_lab.theory.trajectories import inner_steps
from apo_lightning import losses
from apo_lightning.advantages import GroupNormalized
from apo_lightning.losses import PolicyLoss

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
    path = inner_steps(ref.log()[None], lambda z: expected_force(problem, z, loss, GroupNormalized()), _ETA, _STEPS)
    return path[:, 0].softmax(1)[:, 1]

"""Squeezing against elastic recovery."""

from matplotlib.figure import Figure
from torch import Tensor

from apo_lab.reporting.figures.canvas import EndLabel, label_ends, panels, styled
from apo_lab.reporting.style import INK, QUIET
from apo_lab.theory.expectations import expected_force
from apo_lab.theory.figures.lines import APO, GRPO, line
from apo_lab.theory.forces import token_force
from apo_lab.theory.problems import bandit, dist
from apo_lab.theory.trajectories import inner_steps
from apo_lightning import losses
from apo_lightning.advantages import GroupNormalized
from apo_lightning.losses import PolicyLoss

_ETA, _STEPS = 0.2, 350


@styled
def recovery_figure() -> Figure:
    """Left: repeated pushes on one error. Right: a prefix whose branches are equally good."""
    figure, (squeezing, recovery) = panels(2, height=2.3, most_columns=2)
    start, steps = dist(0.90, 0.05, 0.04, 0.01), 12
    path = inner_steps(start.log(), lambda z: token_force(losses.GRPO(), z.softmax(0), start, 1), 0.5, steps).softmax(1)
    labels = []
    names = ("leader", "the error", "bystander", "rarer bystander")
    for token, color in enumerate((INK, GRPO.color, APO.color, QUIET)):
        squeezing.plot(range(steps + 1), path[:, token], color=color, linestyle="-" if token != 1 else "--")
        labels.append(EndLabel(text=names[token], x=steps, y=path[-1, token].item(), color=color))
    squeezing.set(yscale="log", xlabel="pushes on the error (η = 0.5)", ylabel="probability", title="Squeezing")
    label_ends(squeezing, labels)
    labels = []
    time = [_ETA * index for index in range(_STEPS)]
    for rare in (0.3, 0.1, 0.03):
        path = _minor_branch(losses.APO(anchor_size=2), rare)
        labels.append(line(recovery, time, path, APO, f"APO, Z = {rare:g}"))
        recovery.axhline(min(2.5 * rare, 1 - rare), color=QUIET, linewidth=0.6, linestyle=":")
    recovery.text(time[-1], 0.71, "caps min(1 − Z, κ·Z)", fontsize=6.5, color=QUIET, ha="right", va="bottom")
    labels.append(line(recovery, time, _minor_branch(losses.GRPO(), 0.03), GRPO, "GRPO, Z = 0.03"))
    recovery.set(
        xlabel="time [η × steps]", ylabel="probability of the minor branch", ylim=(0, 0.79), title="Elastic recovery"
    )
    label_ends(recovery, labels)
    return figure


def _minor_branch(loss: PolicyLoss, rare: float) -> list[float]:
    """π of a branch under the exact force, from its reference probability Z on; both branches have the same Q."""
    problem = bandit(dist(1 - rare, rare), dist(0.5, 0.5))
    z: Tensor = dist(1 - rare, rare).log()[None]
    path = []
    for _ in range(_STEPS):
        path.append(z.softmax(1)[0, 1].item())
        z = z + _ETA * expected_force(problem, z, loss, GroupNormalized())
    return path

"""Naive against exclusive anchors."""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.theory.expectations import expected_force
from apo_lab.theory.figures.lines import APO, GRPO, NAIVE, curves
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import bandit, constant, dist
from apo_lab.theory.trajectories import inner_steps
from apo_lightning import losses
from apo_lightning.advantages import GroupNormalized
from apo_lightning.losses import PolicyLoss

_ETA, _STEPS = 0.2, 299


@styled
def anchors_figure() -> Figure:
    """Left: force on the error's logit. Right: entropy of a prefix shared by right and wrong completions."""
    figure, (push, spread) = panels(2, height=2.3, most_columns=2)
    methods = (
        ("GRPO", GRPO.line, losses.GRPO()),
        ("APO", APO.line, losses.APO(anchor_size=3)),
        ("naive", NAIVE.line, losses.APO(anchor_size=3, exclude_sampled=False)),
    )
    shares = torch.linspace(0.02, 0.98, 97, dtype=torch.float64)
    shown = [(name, look, _force_on_error(loss, shares)) for name, look, loss in methods]
    ylabel = "force on its logit [nats per η]"
    curves(push, "Force on the error", "probability of the error", ylabel, shares.tolist(), shown)
    time = [_ETA * step for step in range(_STEPS + 1)]
    shown = [(name, look, _entropy(loss)) for name, look, loss in methods]
    title = "A shared prefix, equal quality"
    curves(spread, title, "time [η × steps]", "entropy [nats]", time, shown, ylim=(0, 1.15))
    return figure


def _force_on_error(loss: PolicyLoss, shares: Tensor) -> Tensor:
    """Force on z_y at π = π_ref; y has the share, two other tokens of T_K split nine tenths of the rest."""
    rest = 1 - shares
    probs = torch.stack([shares, 0.5 * rest, 0.4 * rest, 0.1 * rest], dim=1)
    return token_forces(loss, probs.log(), probs, 0)[:, 0]


def _entropy(loss: PolicyLoss) -> Tensor:
    """H at each step of the exact force [nats]; the policy starts at the reference (.80, .12, .05, .03)."""
    ref = dist(0.80, 0.12, 0.05, 0.03)
    problem = bandit(ref, constant(0.5, 4))
    path = inner_steps(ref.log()[None], lambda z: expected_force(problem, z, loss, GroupNormalized()), _ETA, _STEPS)
    return torch.special.entr(path[:, 0].softmax(1)).sum(1)

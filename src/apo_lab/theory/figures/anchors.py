"""Naive against exclusive anchors."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import label_ends, panels, styled
from apo_lab.theory.expectations import expected_force
from apo_lab.theory.figures.lines import APO, GRPO, NAIVE, line
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import bandit, constant, dist
from apo_lightning import losses
from apo_lightning.advantages import GroupNormalized
from apo_lightning.losses import PolicyLoss


@styled
def anchors_figure() -> Figure:
    """Left: force on the error's logit. Right: entropy of a prefix shared by right and wrong completions."""
    figure, (push, spread) = panels(2, height=2.3, most_columns=2)
    apo = losses.APO(anchor_size=3)
    naive = replace(apo, exclude_sampled=False)
    methods = ((GRPO, "GRPO", losses.GRPO()), (APO, "APO", apo), (NAIVE, "naive", naive))
    shares = torch.linspace(0.02, 0.98, 97, dtype=torch.float64)
    labels = [line(push, shares.tolist(), _forces(loss, shares), style, name) for style, name, loss in methods]
    push.set(xlabel="probability of the error", ylabel="force on its logit [nats per η]", title="Force on the error")
    label_ends(push, labels)
    labels = [line(spread, *_entropy(loss), style, name) for style, name, loss in methods]
    spread.set(
        xlabel="time [η × steps]", ylabel="entropy [nats]", ylim=(0, 1.15), title="A shared prefix, equal quality"
    )
    label_ends(spread, labels)
    return figure


def _forces(loss: PolicyLoss, shares: torch.Tensor) -> list[float]:
    """Force on z_y at π = π_ref; y has the share, two other tokens of T_K split nine tenths of the rest."""
    rest = 1 - shares
    probs = torch.stack([shares, 0.5 * rest, 0.4 * rest, 0.1 * rest], dim=1)
    return token_forces(loss, probs.log(), probs, torch.zeros(len(shares), dtype=torch.long))[:, 0].tolist()


def _entropy(loss: PolicyLoss) -> tuple[Sequence[float], Sequence[float]]:
    """(times, entropies) under the exact force; the policy starts at the reference (.80, .12, .05, .03)."""
    ref = dist(0.80, 0.12, 0.05, 0.03)
    problem, z = bandit(ref, constant(0.5, 4)), ref.log()[None]
    entropy = []
    for _ in range(300):
        probs = z.softmax(1)
        entropy.append(-(probs * probs.log()).sum().item())
        z = z + 0.2 * expected_force(problem, z, loss, GroupNormalized())
    return [0.2 * index for index in range(300)], entropy

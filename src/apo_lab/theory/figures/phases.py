"""Which force wins, and where the gate shuts: maps over β, λ and K, made by asking the shipped loss at every point."""

from dataclasses import replace

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import EndLabel, label_ends, panels, styled
from apo_lab.reporting.style import INK, QUIET
from apo_lab.theory.draws import dist
from apo_lab.theory.figures.lines import APO as APO_STYLE
from apo_lab.theory.figures.lines import GRPO as GRPO_STYLE
from apo_lab.theory.forces import token_forces
from apo_lightning.losses import APO

_REGIONS = ListedColormap(["#f6d9cd", "#9dbfe2", "#8c9198"])
"""Push wins, pull wins, gate shut: of different lightness, so that grey keeps them apart."""
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}


@styled
def phases_figure() -> Figure:
    """β against the sureness of the policy; κ over β and λ; anchors against K."""
    figure, (forces, limits, sizes) = panels(3, height=2.35)
    betas, shares = np.linspace(0.004, 0.24, 60), np.linspace(0.5, 0.995, 60)
    regions = np.array([_region(beta, shares) for beta in betas])
    forces.pcolormesh(shares, betas, regions, cmap=_REGIONS, vmin=0, vmax=2, shading="nearest", rasterized=True)
    edge = 1.05 * (1 - shares) / shares
    forces.plot(shares, edge, color=INK, linewidth=0.9)
    forces.set(
        xlabel="probability of the error", ylabel="β", ylim=(0.004, 0.24), title="Force on the error", xlim=(0.5, 0.99)
    )
    forces.grid(visible=False)
    forces.text(0.53, 0.07, "push is larger", fontsize=7)
    forces.text(0.985, 0.19, "pull is\nlarger", fontsize=7, ha="right")
    forces.text(0.53, 0.012, "π = π_ref, λ = 1.05, ε = 0.2", fontsize=6.5, color=INK)

    beta, push = np.meshgrid(np.linspace(0.01, 0.3, 80), np.linspace(0.9, 1.3, 80))
    kappa = (push - 0.8) / beta
    kappa[push - beta <= 0.8] = np.nan
    lines = limits.contour(beta, push, kappa, levels=[1.5, 2.5, 5, 10], colors=APO_STYLE.color, linewidths=1.0)
    limits.clabel(lines, fmt="κ = %g", fontsize=6.5)
    limits.fill_between([0.1, 0.3], [0.9, 1.1], 0.9, color="#b9bdc3", linewidth=0)
    limits.text(0.295, 0.915, "refused:\nλ − β ≤ 1 − ε", fontsize=6.5, ha="right", va="bottom")
    limits.plot([0.1], [1.05], marker="*", color=INK, markersize=8)
    limits.annotate("default", (0.1, 1.05), xytext=(7, -10), textcoords="offset points", fontsize=7, bbox=_WHITE)
    limits.set(xlabel="β", ylabel="λ", title="Pull ends at κ·Z", xlim=(0.01, 0.3), ylim=(0.9, 1.3))
    limits.grid(visible=False)

    counts = list(range(2, 33))
    labels = []
    for name, style, ref in (("reference sure", GRPO_STYLE, _geometric(0.05)), ("unsure", APO_STYLE, _geometric(0.7))):
        gain = [_gain_on_second(ref, count) for count in counts]
        sizes.plot(counts, gain, color=style.color, linestyle=style.linestyle)
        labels.append(EndLabel(text=name, x=counts[-1], y=gain[-1], color=style.color))
    sizes.set(xlabel="K [anchors]", ylabel="pull on the 2nd token / π", yscale="log", title="More anchors, weaker pull")
    sizes.axvline(8, color=QUIET, linewidth=0.6, linestyle=":")
    label_ends(sizes, labels)
    return figure


def _region(beta: float, shares: np.ndarray) -> list[int]:
    """0: the push on z_y is larger, 1: the pull, 2: neither, for π = π_ref with π_y over `shares`."""
    loss = APO(anchor_size=2, pull_coef=float(beta))
    probs = torch.tensor(np.stack([shares, 1 - shares], axis=1))
    token, minus = torch.zeros(len(shares), dtype=torch.long), -torch.ones(len(shares), dtype=torch.float64)
    both = token_forces(loss, probs.log(), probs, token, minus)[:, 0]
    push = token_forces(replace(loss, pull_coef=0.0), probs.log(), probs, token, minus)[:, 0]
    return torch.where(both == 0, 2, torch.where(both < 2 * push, 1, 0)).tolist()


def _geometric(rest: float) -> torch.Tensor:
    """64 tokens: the first holds 1 − rest, and each next a fifth less than the one before."""
    tail = 0.8 ** torch.arange(63, dtype=torch.float64)
    return torch.cat([dist(1 - rest), rest * tail / tail.sum()])


def _gain_on_second(ref: torch.Tensor, count: int) -> float:
    """Pull on the reference's second token per unit of its probability, where the first is an error and π = π_ref."""
    loss = APO(anchor_size=count)
    rows, token, minus = ref[None], torch.tensor([0]), -torch.ones(1, dtype=torch.float64)
    pull = token_forces(loss, rows.log(), rows, token, minus) - token_forces(
        replace(loss, pull_coef=0.0), rows.log(), rows, token, minus
    )
    return (pull[0, 1] / ref[1]).item()

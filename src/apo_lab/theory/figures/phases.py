"""Which force is larger, and where the gate shuts: maps over β, λ and K of the loss that trains."""

from dataclasses import replace

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.reporting.style import INK, QUIET
from apo_lab.theory.figures.lines import APO as APO_STYLE
from apo_lab.theory.figures.lines import GRPO as GRPO_STYLE
from apo_lab.theory.figures.lines import curves
from apo_lab.theory.forces import pull_forces, token_forces
from apo_lab.theory.problems import dist
from apo_lightning.losses import APO

_REGIONS = ListedColormap(["#f6d9cd", "#9dbfe2", "#8c9198"])
"""Push is larger, pull is larger, gate shut; their lightness differs, so that they stay apart in grey."""
_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}


@styled
def phases_figure() -> Figure:
    """Left: β against the error's probability. Middle: κ over β and λ. Right: the pull against K."""
    figure, (forces, limits, sizes) = panels(3, height=2.35)
    betas, shares = np.linspace(0.004, 0.24, 60), np.linspace(0.5, 0.995, 60)
    regions = np.array([_region(beta, shares) for beta in betas])
    forces.pcolormesh(shares, betas, regions, cmap=_REGIONS, vmin=0, vmax=2, shading="nearest", rasterized=True)
    edge = 1.05 * (1 - shares) / shares
    forces.plot(shares, edge, color=INK, linewidth=0.9)
    forces.set(title="Force on the error", xlabel="probability of the error", ylabel="β")
    forces.set(xlim=(0.5, 0.99), ylim=(0.004, 0.24))
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

    counts, shown = range(2, 33), []
    for name, style, ref in (("reference sure", GRPO_STYLE, _geometric(0.05)), ("unsure", APO_STYLE, _geometric(0.7))):
        shown.append((name, style.line, torch.stack([_gain_on_second(ref, count) for count in counts])))
    sizes.axvline(8, color=QUIET, linewidth=0.6, linestyle=":")
    ylabel = "pull on the 2nd token / π"
    curves(sizes, "More anchors, weaker pull", "K [anchors]", ylabel, counts, shown, yscale="log")
    return figure


def _region(beta: float, shares: np.ndarray) -> list[int]:
    """At π = π_ref, for each π_y: 0 if the push on z_y is larger, 1 if the pull is, 2 if the gate is shut."""
    loss = APO(anchor_size=2, pull_coef=float(beta))
    probs = torch.tensor(np.stack([shares, 1 - shares], axis=1))
    both, push = (token_forces(x, probs.log(), probs, 0)[:, 0] for x in (loss, replace(loss, pull_coef=0.0)))
    return torch.where(both == 0, 2, torch.where(both < 2 * push, 1, 0)).tolist()


def _geometric(rest: float) -> torch.Tensor:
    """64 probabilities: the first is 1 − rest; each later one is a fifth less than the one before."""
    tail = 0.8 ** torch.arange(63, dtype=torch.float64)
    return torch.cat([dist(1 - rest), rest * tail / tail.sum()])


def _gain_on_second(ref: torch.Tensor, count: int) -> torch.Tensor:
    """Pull on the reference's second token per unit of its probability, if the first is an error and π = π_ref."""
    return pull_forces(APO(anchor_size=count), ref.log(), ref, 0)[1] / ref[1]

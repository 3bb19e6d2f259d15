"""Which force is larger, and where the gate shuts, over β, λ and K."""

import numpy as np
import torch
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.reporting.style import INK, QUIET
from apo_lab.theory.figures.lines import APO as APO_STYLE
from apo_lab.theory.figures.lines import GRPO as GRPO_STYLE
from apo_lab.theory.figures.lines import curves
from apo_lab.theory.forces import pull_forces
from apo_lab.theory.problems import dist
from apo_lightning.losses import APO

_WHITE = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}


@styled
def phases_figure() -> Figure:
    """Left: β against the error's probability. Middle: κ over β and λ. Right: the pull against K."""
    figure, (forces, limits, sizes) = panels(3, height=2.35)
    shares = np.linspace(0.5, 0.99, 60)
    # Statement P1 measures this edge on the loss.
    edge = 1.05 * (1 - shares) / shares
    forces.fill_between(shares, edge, color="#f6d9cd", linewidth=0)
    forces.fill_between(shares, edge, 0.24, where=edge < 0.24, color="#9dbfe2", linewidth=0)
    forces.plot(shares, edge, color=INK, linewidth=0.9)
    forces.set(title="Force on the error", xlabel="probability of the error", ylabel="β")
    forces.set(xlim=(0.5, 0.99), ylim=(0.004, 0.24))
    forces.text(0.53, 0.07, "push is larger", fontsize=7)
    forces.text(0.985, 0.19, "pull is\nlarger", fontsize=7, ha="right")
    forces.text(0.53, 0.012, "π = π_ref, λ = 1.05", fontsize=6.5, color=INK)

    beta, push = np.meshgrid(np.linspace(0.01, 0.3, 80), np.linspace(0.9, 1.3, 80))
    kappa = np.where(push - beta <= 0.8, np.nan, (push - 0.8) / beta)
    lines = limits.contour(beta, push, kappa, levels=[1.5, 2.5, 5, 10], colors=APO_STYLE.color, linewidths=1.0)
    limits.clabel(lines, fmt="κ = %g", fontsize=6.5)
    limits.fill_between([0.1, 0.3], [0.9, 1.1], 0.9, color="#b9bdc3", linewidth=0)
    limits.text(0.295, 0.915, "refused:\nλ − β ≤ 1 − ε", fontsize=6.5, ha="right", va="bottom")
    limits.plot([0.1], [1.05], marker="*", color=INK, markersize=8)
    limits.annotate("default", (0.1, 1.05), xytext=(7, -10), textcoords="offset points", fontsize=7, bbox=_WHITE)
    limits.set(xlabel="β", ylabel="λ", title="Pull ends at κ·Z", xlim=(0.01, 0.3), ylim=(0.9, 1.3))
    for axes in (forces, limits):
        axes.grid(visible=False)

    counts, shown = range(2, 33), []
    for name, style, rest in (("reference sure", GRPO_STYLE, 0.05), ("unsure", APO_STYLE, 0.7)):
        # π = π_ref over 64 tokens: each later one is a fifth less than the one before.
        tail = 0.8 ** torch.arange(63, dtype=torch.float64)
        ref = torch.cat([dist(1 - rest), rest * tail / tail.sum()])
        pulls = [pull_forces(APO(anchor_size=count), ref.log(), ref, 0)[1] / ref[1] for count in counts]
        shown.append((name, style.line, torch.stack(pulls)))
    sizes.axvline(8, color=QUIET, linewidth=0.6, linestyle=":")
    ylabel = "pull on the 2nd token / π"
    curves(sizes, "More anchors, weaker pull", "K [anchors]", ylabel, counts, shown, yscale="log")
    return figure

"""The ratio of an error within one rollout: KL moves it out of the trust region, APO's gate on ρ stops it."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.reporting.style import HAIRLINE, QUIET
from apo_lab.theory.figures.lines import APO, GRPO, KL, Curve, curves
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import dist
from apo_lab.theory.trajectories import inner_steps
from apo_lightning import losses
from apo_lightning.losses import GRPOKL, PolicyLoss

_ETA, _STEPS = 0.1, 250


@styled
def trust_region_figure() -> Figure:
    """Left: GRPO with KL(π‖π_ref) at several coefficients. Right: APO, the error and its anchors."""
    figure, (penalty, anchored) = panels(2, height=2.3, most_columns=2)
    old, ref = dist(0.30, 0.50, 0.20), dist(0.05, 0.55, 0.40)
    penalty.axhline(1 / 6, color=QUIET, linewidth=0.6, linestyle=":")
    penalty.text(_ETA * _STEPS * 0.02, 1 / 6 - 0.02, "π_ref/π_old", fontsize=6.5, color=QUIET, va="top")
    shown = [("no penalty", GRPO.line, _ratios(losses.GRPO(), old, ref)[:, 0])]
    for coef in (0.01, 0.1, 1.0):
        ratios = _ratios(GRPOKL(kl_coef=coef, kl_estimator="full"), old, ref)
        shown.append((f"KL × {coef:g}", KL.line, ratios[:, 0]))
    _draw(penalty, shown, "KL leaves the window", top=1.25)
    ratios = _ratios(losses.APO(anchor_size=4), dist(0.90, 0.05, 0.03, 0.02), dist(0.4, 0.2, 0.2, 0.2))
    quiet = {"color": QUIET, "linewidth": 1.0}
    names = {0: ("the error", APO.line), 1: ("likely anchor", quiet), 3: ("rare anchor", quiet)}
    shown = [(name, look, ratios[:, token]) for token, (name, look) in names.items()]
    _draw(anchored, shown, "APO's gate holds the error, not the anchors", top=1.05 * ratios.max().item())
    return figure


def _ratios(loss: PolicyLoss, old: Tensor, ref: Tensor) -> Tensor:
    path = inner_steps(old.log(), lambda z: token_forces(loss, z, ref, 0, old_logits=old.log()), _ETA, _STEPS)
    return path.softmax(1) / old


def _draw(axes: Axes, shown: Sequence[Curve], title: str, top: float) -> None:
    """Ratios over time, and the window 1 ± ε."""
    axes.axhspan(0.8, 1.2, color=HAIRLINE, zorder=0)
    axes.text(_ETA * _STEPS, 1.19, "1 ± ε", fontsize=6.5, color=QUIET, va="top", ha="right")
    time = [_ETA * step for step in range(_STEPS + 1)]
    xlabel, ylabel = "time within a rollout [η × steps]", "ratio to the old policy"
    curves(axes, title, xlabel, ylabel, time, shown, ylim=(0, top))

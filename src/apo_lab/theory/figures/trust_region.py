"""The ratio of an error within one rollout: KL moves it out of the trust region, APO's gate on ρ stops it."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import EndLabel, label_ends, panels, styled
from apo_lab.reporting.style import HAIRLINE, QUIET
from apo_lab.theory.figures.lines import APO, GRPO, KL, line
from apo_lab.theory.forces import token_force
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
    time = [_ETA * index for index in range(_STEPS + 1)]
    labels = []
    for coef, style in ((0.0, GRPO), (0.01, KL), (0.1, KL), (1.0, KL)):
        ratio = _ratios(GRPOKL(kl_coef=coef, kl_estimator="full"), old, ref)[:, 0].tolist()
        labels.append(line(penalty, time, ratio, style, "no penalty" if coef == 0 else f"KL × {coef:g}"))
    penalty.axhline(1 / 6, color=QUIET, linewidth=0.6, linestyle=":")
    penalty.text(_ETA * _STEPS * 0.02, 1 / 6 - 0.02, "π_ref/π_old", fontsize=6.5, color=QUIET, va="top")
    penalty.set(title="KL leaves the window", ylim=(0, 1.25))
    _window(penalty)
    label_ends(penalty, labels)
    ratios = _ratios(losses.APO(anchor_size=4), dist(0.90, 0.05, 0.03, 0.02), dist(0.4, 0.2, 0.2, 0.2))
    labels = [line(anchored, time, ratios[:, 0].tolist(), APO, "the error")]
    for token, name in ((1, "likely anchor"), (3, "rare anchor")):
        anchored.plot(time, ratios[:, token], color=QUIET, linewidth=1.0)
        labels.append(EndLabel(text=name, x=time[-1], y=ratios[-1, token].item(), color=QUIET))
    anchored.set(title="APO's gate holds the error, not the anchors", ylim=(0, None))
    _window(anchored)
    label_ends(anchored, labels)
    return figure


def _ratios(loss: PolicyLoss, old: torch.Tensor, ref: torch.Tensor) -> torch.Tensor:
    path = inner_steps(old.log(), lambda z: token_force(loss, z.softmax(0), ref, 0, old=old), _ETA, _STEPS)
    return path.softmax(1) / old


def _window(axes: Axes) -> None:
    axes.axhspan(0.8, 1.2, color=HAIRLINE, zorder=0)
    axes.text(_ETA * _STEPS, 1.19, "1 ± ε", fontsize=6.5, color=QUIET, va="top", ha="right")
    axes.set(xlabel="time within a rollout [η × steps]", ylabel="ratio to the old policy")

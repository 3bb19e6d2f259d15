"""What one algorithm does to a tabular policy with two right answers."""

from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.theory.figures.lines import APO, GRPO, NSR, curves
from apo_lab.theory.trajectories import TWO_VALID, course
from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.losses import PolicyLoss

STEPS, GROUP_SIZE, RATE, RUNS = 100, 8, 0.2, 48
TOKENS = TWO_VALID.ref.shape[1]


@styled
def algorithm_figure(loss: PolicyLoss, advantage: AdvantageEstimator) -> Figure:
    """Mean probability of the likely right answer, the rare one and all errors, over steps on groups of eight."""
    rare, accuracy = course(TWO_VALID, loss, advantage, group_size=GROUP_SIZE, eta=RATE, replicates=RUNS, steps=STEPS)
    figure, (axes,) = panels(1, height=1.5)
    shown = [
        ("likely answer", GRPO.line, (accuracy - rare).mean(1)[::2]),
        ("rare answer", APO.line, rare.mean(1)[::2]),
        ("errors", NSR.line, (1 - accuracy).mean(1)[::2]),
    ]
    steps = range(0, STEPS, 2)
    curves(axes, "", "optimizer step", "probability (log scale)", steps, shown, yscale="log", ylim=(1e-3, 1))
    return figure

"""Force on a suppressed valid branch per unit of its probability; a flat line does not persist as π → 0."""

from matplotlib.figure import Figure

from apo_lab.reporting.figures.canvas import label_ends, panels, styled
from apo_lab.reporting.style import KNOWN
from apo_lab.theory.figures.lines import APO, GRPO, KL, NSR, line
from apo_lab.theory.growth import growth

_SHOWN = (
    ("NSR (÷u)", NSR, "NSR"),
    ("GRPO", GRPO, "GRPO"),
    ("APO", APO, "APO"),
    ("+KL(ref‖π) = E[k3]", KL, "k3"),
    ("+k3, clamp 10", KNOWN["GRPO-KL (error-only)"], "k3, clamp 10"),
    ("APO, cross-entropy pull", KNOWN["APO on Pass@k"], "APO, cross-entropy pull"),
)


@styled
def growth_figure() -> Figure:
    """Left: an error leads. Right: a valid branch leads."""
    figure, both = panels(2, height=2.3, most_columns=2)
    rarities = [10 ** (-power / 2) for power in range(4, 17)]
    for axes, scene, title in zip(both, ("A", "B"), ("An error holds 0.9", "A valid branch holds 0.9"), strict=True):
        labels = []
        for method, style, name in _SHOWN:
            values = [growth(method, scene, rare).per_probability for rare in rarities]
            labels.append(line(axes, rarities, values, style, name))
        axes.set(xscale="log", yscale="log", xlabel="probability of the branch", title=title, xlim=(1e-2, 1e-8))
        axes.set_ylabel("force / probability [nats per η]")
        label_ends(axes, labels)
    return figure

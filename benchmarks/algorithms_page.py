"""`python -m benchmarks.algorithms_page docs`: the page of all algorithms, from their files.

A section is made of the first lines of the algorithm's YAML (what it is; a line that begins with "Use" says when), of
the docstrings of its loss, advantage estimator and parts, of what they declare, and of a run on a tabular policy.
"""

import functools
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from hydra.utils import get_class, instantiate
from matplotlib.figure import Figure
from omegaconf import DictConfig

from apo_lab.theory.figures import APO, GRPO, NSR, curves
from apo_lab.theory.trajectories import TWO_VALID, course
from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.common.files import write_atomically
from apo_lightning.losses import PolicyLoss
from apo_lightning.run.choices import composed, config_folders, options_of
from apo_lightning.types import Needs
from apo_report.figures.canvas import encode, panels, styled

STEPS, GROUP_SIZE, RATE, RUNS = 100, 8, 0.2, 48
TOKENS = TWO_VALID.ref.shape[1]
ROOT = Path(__file__).resolve().parents[1]
USUAL = ("GroupNormalized", "apo")
"""The estimator that a section does not repeat, and the section that describes it."""
HEAD = f"""# Algorithms

<!-- made by python -m benchmarks.algorithms_page docs -->

Each is a loss and an advantage estimator, chosen by `algo=<name>`. The figures show means over {RUNS} runs on a
bandit of {TOKENS} tokens: a right answer of probability 0.40, another of 0.05, and 14 errors, for {STEPS} optimizer
steps on groups of {GROUP_SIZE} with learning rate {RATE} on the logits. They show tendencies of a loss on one
softmax, not of a language model. [The laboratory](lab.md#what-to-use) says which of them keep alternatives in training.

Each class is described once. Advantages are those of [`{USUAL[0]}`](#{USUAL[1]}) unless a section names another
estimator; wrappers (`Adjusted`, `Informative`, `InverseFrequency`, `Shaped`) contain it.
"""


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


def page() -> str:
    """The whole page; a class is described once, in the section of its name or where it occurs first."""
    names = options_of("algo")
    # By class name: GRPO in grpo, GridLoss in grid.
    described = {kind.__name__: name for name in names for kind in [_loss_of(name)] if _own_section(kind) == name}
    listed = " ".join(f"[`{name}`](#{name})" for name in names)
    return "\n".join([HEAD, listed, "", *(_section(name, described) for name in names)])


@functools.cache
def _node(name: str) -> DictConfig:
    return composed("train", [f"algo={name}"]).algo


def _loss_of(name: str) -> type:
    return get_class(_node(name).loss["_target_"])


def _own_section(kind: type) -> str:
    return kind.__name__.removesuffix("Loss").lower()


def draw(folder: Path) -> None:
    """Write the figures as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in options_of("algo"):
        if not _why_no_figure(node := _node(name)):
            figure = algorithm_figure(instantiate(node.loss), instantiate(node.advantage))
            write_atomically(folder / f"{name}.svg", encode(figure, "svg"))


def _section(name: str, described: dict[str, str]) -> str:
    node = _node(name)
    path = next(p for folder in config_folders() if (p := folder / "algo" / f"{name}.yaml").exists())
    comment = [line.removeprefix("# ") for line in path.read_text().splitlines() if line.startswith("# ")]
    needs = functools.reduce(
        Needs.__or__, (part.needs for part in instantiate(node.get("parts", {})).values()), instantiate(node.loss).needs
    )
    parts = [
        f"## {name}",
        "",
        *comment,
        "",
        f"Settings: [{path.name}](../{path.resolve().relative_to(ROOT)}).",
        "",
        *_parts(node, name, described),
    ]
    parts += [_costs(needs, bool(node.get("critic"))), ""]
    parts += [_why_no_figure(node) or f"![What {name} does to a bandit](figures/algorithms/{name}.svg)", ""]
    return "\n".join(parts)


def _why_no_figure(node: DictConfig) -> str | None:
    """Why the bandit does not show what the algorithm does; None: it does."""
    needs = instantiate(node.loss).needs
    if needs.columns:
        return "It marks tokens of a whole mini-batch, and the bandit has one."
    if needs.completions and not needs.reference:
        return "On the first mini-batch of a rollout, and so on the bandit, its gradient is GRPO's in this aggregation."
    if node.get("dynamic_sampling"):
        return "It chooses among prompts, and the bandit is a single one."
    if node.get("parts"):
        return "Without its part, as on the bandit, it is GRPO."
    if node.get("critic"):
        return "Without its critic, as on the bandit, it is REINFORCE."
    return "The bandit has fewer tokens than it reads anchors." if needs.anchor_size > TOKENS else None


def _parts(node: DictConfig, name: str, described: dict[str, str]) -> list[str]:
    """Loss, estimator and parts: those of this section with their formulas, the others as links."""
    nodes = [node[key] for key in ("loss", "advantage")]
    kinds = [kind for item in (*nodes, *node.get("parts", {}).values()) for kind in _classes(item)]
    new = [kind for kind in kinds if described.setdefault(kind.__name__, name) == name]
    others = [kind.__name__ for kind in kinds if kind not in new and kind.__name__ != USUAL[0]]
    links = [f"[`{kind}`](#{described[kind]})" for kind in others]
    return [*([f"Uses {', '.join(links)}.", ""] if links else []), *(line for kind in new for line in _described(kind))]


def _classes(node: DictConfig) -> Iterator[type]:
    """The class of a node, then those within it."""
    yield get_class(node["_target_"])
    for nested in node.values():
        if isinstance(nested, DictConfig) and "_target_" in nested:
            yield from _classes(nested)


def _described(kind: type) -> list[str]:
    """A class: the first paragraph of its docstring, its formulas and its sources."""
    paragraphs = re.split(r"\n\n+", inspect.cleandoc(kind.__doc__ or ""))
    lines = [f"`{kind.__name__}`: {paragraphs[0]}", ""]
    for formula in (p for p in paragraphs if p.startswith("    ") and ">>>" not in p):
        lines += ["```text", inspect.cleandoc("\n" + formula), "```", ""]
    for source in (p for p in paragraphs if p.startswith(("Source:", "Departure:"))):
        lines += [" ".join(source.split()), ""]
    return lines


def _costs(needs: Needs, has_critic: bool) -> str:
    """What it runs and reads, by its own declaration."""
    ran = {"all": "every completion", "nonzero_advantage": "completions of A ≠ 0"}
    extras = []
    if needs.reference:
        read = "every token" if needs.reference_on == "all" else "tokens of errors"
        extras.append(f"the reference on {read}" + (f", {needs.anchor_size} anchors each" if needs.anchor_size else ""))
    extras += ["the entropy of the policy"] * needs.entropy + ["one more forward of the head"] * needs.completions
    extras += ["statistics over the mini-batch"] * bool(needs.columns)
    extras += ["the values of a critic"] * has_critic
    runs = "every completion" if has_critic else ran[needs.gradient_on or "all"]  # a critic's loss is of every token
    return f"*The update runs* {runs}." + (f" *It reads* {'; '.join(extras)}." if extras else "")


if __name__ == "__main__":
    docs = Path(sys.argv[1])
    write_atomically(docs / "algorithms.md", page().encode())
    draw(docs / "figures" / "algorithms")

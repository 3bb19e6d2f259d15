"""How often do two samples of one method get the verdict `higher` or `lower`? Prints a Markdown table; two CPU minutes.

    python -m benchmarks.accuracy.verdicts

Simulated: each of 200 families has a reference arm and 7 others of the same method, with seeds of their own. A run is
a path of success probabilities with a cliff: at some progress, a part of the problems drops to nearly 0, so pass@64
falls steeply while pass@1 hardly changes. When that happens depends on the seed; which problems drop depends on the
problem and on seed × problem. Each run goes through `leave_one_block_out`, `pseudo_values`, `compare` and `decide`. For
power, the last of the 7 has a later cliff. In "with interaction", the cliff also depends on the arm and world together.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import binomtest

from apo_lab.statistics.paths import leave_one_block_out
from apo_lab.statistics.verdicts import LEVEL, ArmScores, Contrast, Outcome, compare, decide, pseudo_values
from benchmarks.accuracy.intervals import show

NUM_FAMILIES = 200
FAMILY = 7
NUM_PROBLEMS, NUM_POINTS = 512, 21
K, LEVEL_OF_PASS_AT_1 = 64, 0.36

EASE, EASE_SD = -2.3, 1.0
"""Of the base model's log-odds."""
RISE, RISE_SD, RISE_OF_BOTH_SD = 2.6, 0.1, 0.3
"""Of the log-odds over a run; spread over seeds, and over seeds × problems."""
CLIFF, CLIFF_SD, CLIFF_WIDTH, DROP = 0.60, 0.03, 0.02, 8.0
"""Where in a run a problem drops [share of the steps], its spread over seeds, and by how much [log-odds]."""
DROPPING = 0.6
"""Of a normal score with equal parts from problem and seed × problem: 27 % of the problems drop."""
WOBBLE_SD = 0.05
"""Of all log-odds together, from one evaluation point to the next."""
INTERACTION_SD = 0.05
"""Of the cliff of an arm in a world."""
LATER_CLIFFS = (0.036, 0.12)
NUM_SEEDS_OF_TRUTH, NUM_PROBLEMS_OF_TRUTH = 300, 4096


@dataclass(frozen=True, kw_only=True)
class World:
    """The base model's log-odds and the tendency to drop [problems]."""

    ease: np.ndarray
    tendency: np.ndarray


def world(num_problems: int, rng: np.random.Generator) -> World:
    return World(ease=EASE + EASE_SD * rng.standard_normal(num_problems), tendency=rng.standard_normal(num_problems))


def success(where: World, later: float, rng: np.random.Generator) -> torch.Tensor:
    """The path of one run [points, problems]."""
    progress = np.linspace(0, 1, NUM_POINTS)[:, None]
    of_both, of_drop = rng.standard_normal((2, len(where.ease)))
    rise = RISE + RISE_SD * rng.standard_normal() + RISE_OF_BOTH_SD * of_both
    drops = (where.tendency + of_drop) / np.sqrt(2) > DROPPING
    cliff = CLIFF + later + CLIFF_SD * rng.standard_normal()
    fallen = 1 / (1 + np.exp((cliff - progress) / CLIFF_WIDTH))
    wobble = WOBBLE_SD * rng.standard_normal((NUM_POINTS, 1)) * (progress > 0)
    logits = where.ease + wobble + progress * rise - DROP * fallen * drops
    return torch.from_numpy(1 / (1 + np.exp(-logits)))


def table(where: World, num_seeds: int, later: float, rng: np.random.Generator) -> torch.Tensor:
    """Pseudo-values of an arm in a world [seeds, blocks]."""
    found = [leave_one_block_out(success(where, later, rng), K, LEVEL_OF_PASS_AT_1) for _ in range(num_seeds)]
    return pseudo_values(
        torch.tensor([b.value for b in found], dtype=torch.float64), torch.stack([b.without for b in found])
    )


@dataclass(frozen=True, kw_only=True)
class Design:
    name: str
    num_seeds: int
    num_worlds: int
    interaction_sd: float = 0.0
    later_cliffs: tuple[float, ...] = LATER_CLIFFS
    num_problems: int = NUM_PROBLEMS

    def family(self, rng: np.random.Generator) -> list[list[Contrast]]:
        """A family without a difference, and the same with each of `later_cliffs` in its last comparison."""
        worlds = [world(self.num_problems, rng) for _ in range(self.num_worlds)]

        def arm(later: float) -> ArmScores:
            moved = later + self.interaction_sd * rng.standard_normal(len(worlds))
            tables = {str(n): table(where, self.num_seeds, moved[n], rng) for n, where in enumerate(worlds)}
            return ArmScores(name=f"cliff + {later}", tables=tables)

        reference, *others = (arm(0.0) for _ in range(1 + FAMILY))
        null = [compare(reference, other) for other in others]
        return [null, *([*null[:-1], compare(reference, arm(later))] for later in self.later_cliffs)]


DESIGNS = (
    Design(name="3 seeds × 4 worlds", num_seeds=3, num_worlds=4),
    Design(name="10 seeds × 1 world", num_seeds=10, num_worlds=1),
    Design(
        name="3 seeds × 4 worlds, with interaction",
        num_seeds=3,
        num_worlds=4,
        interaction_sd=INTERACTION_SD,
        later_cliffs=(),
    ),
)


def true_difference(later: float) -> tuple[float, float]:
    """Of an arm with a later cliff [log-odds, share]: both arms have the same random numbers."""
    means = []
    for shift in (0.0, later):
        rng = np.random.default_rng(1)
        values = [
            leave_one_block_out(success(world(NUM_PROBLEMS_OF_TRUTH, rng), shift, rng), K, LEVEL_OF_PASS_AT_1).value
            for _ in range(NUM_SEEDS_OF_TRUTH)
        ]
        means.append(torch.logit(torch.tensor(values, dtype=torch.float64)).mean())
    before, after = means
    return (after - before).item(), (after.sigmoid() - before.sigmoid()).item()


def is_found(outcome: Outcome) -> bool:
    return outcome in (Outcome.HIGHER, Outcome.LOWER)


def share(hits: list[bool]) -> str:
    """With its 95 % interval (Clopper and Pearson)."""
    found = binomtest(sum(hits), len(hits)).proportion_ci()
    return f"{np.mean(hits):.3f} [{found.low:.3f}, {found.high:.3f}]"


def holds(contrast: Contrast, truth: float) -> bool:
    return contrast.logit_difference.low <= truth <= contrast.logit_difference.high


def null_cells(families: list[list[Contrast]]) -> list[str]:
    outcomes = [[verdict.outcome for verdict in decide(family)] for family in families]
    equivalent = np.mean([outcome == Outcome.EQUIVALENT for found in outcomes for outcome in found])
    coverage = np.mean([holds(contrast, 0.0) for family in families for contrast in family])
    rate = share([any(map(is_found, found)) for found in outcomes])
    return [str(len(families)), f"{LEVEL}", rate, f"{coverage:.3f}", f"{equivalent:.2f}"]


def simulated_rows(designs: Sequence[Design] = DESIGNS, num_families: int = NUM_FAMILIES) -> Iterator[list[str]]:
    truths = [true_difference(later) for later in LATER_CLIFFS]
    for design in designs:
        rng = np.random.default_rng(0)
        null, *different = zip(*(design.family(rng) for _ in range(num_families)), strict=True)
        cells = null_cells(list(null))
        for families, (logit, points) in zip(different, truths, strict=False):
            power = np.mean([decide(family)[-1].outcome == Outcome.HIGHER for family in families])
            coverage = np.mean([holds(family[-1], logit) for family in families])
            cells.append(f"{power:.2f} at {100 * points:+.1f}, covered {coverage:.3f}")
        yield [f"simulated, {design.name}", *cells, *[""] * (len(truths) - len(different))]


HEADER = [
    "family of 7",
    "families",
    "nominal rate of any `higher` or `lower`",
    "observed",
    "coverage of the 95 % interval",
    "share `equivalent`",
    "power at the smaller difference [points]",
    "at the larger",
]

if __name__ == "__main__":
    show(HEADER, simulated_rows())

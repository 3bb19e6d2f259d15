"""How often do verdicts err, and what do they find? Prints four Markdown tables; some ten CPU minutes.

    python -m benchmarks.accuracy.verdicts

Simulated runs have a cliff (`benchmarks/accuracy/cliffs.py`): near some pass@1 a share of the problems is lost, so
pass@64 falls steeply while pass@1 goes on rising. Each run goes through an endpoint, `pseudo_values`, `compare` and
`decide`.

1. Each of 200 families has a reference arm and 7 others of the same method, with seeds of their own. For power, the
   last of the 7 has a later cliff. With an "interaction", the cliff also depends on the arm and world together.
2. The power of each endpoint where methods part by 16 points near the last levels.
3. How often `difference_band` holds the whole true curve of no difference.
4. The first again, for `passage` with the instance as unit: the share of lost problems varies by arm and instance
   together, and for power the last arm loses 4 % of the problems less, which is three points at L*.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from scipy.stats import binomtest

from apo_lab.editions.protocol import ENDPOINTS
from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.levels import Curves, at_levels, difference_band
from apo_lab.statistics.paths import leave_one_block_out
from apo_lab.statistics.verdicts import LEVEL, ArmScores, Contrast, Outcome, compare, compare_instances, decide
from benchmarks.accuracy.cliffs import AT_CLIFF, Cliff, K, SimulatedWorld, power, scores, simulated_run
from benchmarks.accuracy.cliffs import LEVEL as LEVEL_OF_PASS_AT_1
from benchmarks.accuracy.intervals import show

NUM_FAMILIES = 200
FAMILY = 7
NUM_PROBLEMS = 512
REFERENCE = Cliff(middle=AT_CLIFF, share=0.26)
INTERACTION_SDS = (0.008, 0.02)
"""Of the cliff of an arm in a world [pass@1]: as between seeds, and more."""
LATER_CLIFFS = (0.01, 0.03)
"""Shifts of the last arm's cliff [pass@1]."""
NUM_SEEDS_OF_TRUTH, NUM_PROBLEMS_OF_TRUTH = 300, 4096
AT_16_POINTS = 0.16
NUM_INSTANCES, NUM_SEEDS, FAMILY_OF_INSTANCES, FEWER_LOST = 8, 3, 6, 0.04
"""Of the edition `decoding`."""
LOST = ((0.26, 0.0), (0.26, 0.033), (0.08, 0.0), (0.08, 0.012), (0.08, 0.019), (0.08, 0.033))
"""Share of lost problems, as of GRPO and of a method that keeps them; sd of the difference of two arms over instances.
In `branches` the latter is 0.012 between decoded arms and 0.033 between methods that keep branches."""
LEVELS = np.linspace(0.15, LEVEL_OF_PASS_AT_1, 43)


def table(where: SimulatedWorld, num_seeds: int, later: float, rng: np.random.Generator) -> torch.Tensor:
    """Pseudo-values of an arm in a world [seeds, blocks]."""
    return scores("area", [simulated_run(where, moved(later), rng) for _ in range(num_seeds)])


def moved(later: float) -> Cliff:
    return replace(REFERENCE, middle=REFERENCE.middle + later)


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
        worlds = [SimulatedWorld.draw(self.num_problems, rng) for _ in range(self.num_worlds)]

        def arm(later: float) -> ArmScores:
            shifts = later + self.interaction_sd * rng.standard_normal(len(worlds))
            tables = {str(n): table(where, self.num_seeds, shifts[n], rng) for n, where in enumerate(worlds)}
            return ArmScores(name=f"cliff + {later}", tables=tables)

        reference, *others = (arm(0.0) for _ in range(1 + FAMILY))
        null = [compare(reference, other) for other in others]
        return [null, *([*null[:-1], compare(reference, arm(later))] for later in self.later_cliffs)]


DESIGNS = (
    Design(name="3 seeds × 4 worlds", num_seeds=3, num_worlds=4),
    Design(name="10 seeds × 1 world", num_seeds=10, num_worlds=1),
    *(
        Design(
            name=f"3 seeds × 4 worlds, interaction {sd}", num_seeds=3, num_worlds=4, interaction_sd=sd, later_cliffs=()
        )
        for sd in INTERACTION_SDS
    ),
)


def true_difference(later: float) -> tuple[float, float]:
    """Of an arm with a later cliff [log-odds, share]: both arms have the same random numbers."""
    means = []
    for shift in (0.0, later):
        rng = np.random.default_rng(1)
        values = [
            leave_one_block_out(
                simulated_run(SimulatedWorld.draw(NUM_PROBLEMS_OF_TRUTH, rng), moved(shift), rng), K, LEVEL_OF_PASS_AT_1
            )[0]
            for _ in range(NUM_SEEDS_OF_TRUTH)
        ]
        means.append(torch.logit(torch.stack(values)).mean())
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


def power_rows() -> Iterator[list[str]]:
    for seeds, family in (([3] * 4, 7), ([10], 7), ([5], 2), ([3], 5)):
        name = f"{seeds[0]} seeds × {len(seeds)} world{'s' if len(seeds) > 1 else ''}, family of {family}"
        yield [name, *(f"{power(each, seeds, AT_16_POINTS, family=family):.2f}" for each in ENDPOINTS)]


def band_rows(num_families: int = NUM_FAMILIES) -> Iterator[list[str]]:
    for num_seeds, num_worlds in ((3, 4), (10, 1), (5, 1)):
        rng, hits = np.random.default_rng(0), []
        for _ in range(num_families):
            worlds = [SimulatedWorld.draw(NUM_PROBLEMS, rng) for _ in range(num_worlds)]
            band = difference_band(*(curves(worlds, num_seeds, rng) for _ in range(2)))
            outside = (band.low > 0) | (band.high < 0)
            hits.append(not outside.any())
        yield [f"{num_seeds} seeds × {num_worlds} world{'s' if num_worlds > 1 else ''}", str(num_families), share(hits)]


def runs_at_level(where: SimulatedWorld, cliff: Cliff, rng: np.random.Generator) -> list[torch.Tensor]:
    """`NUM_SEEDS` runs that reach L*."""
    found = []
    while len(found) < NUM_SEEDS:
        run = simulated_run(where, cliff, rng)
        found += [run] if run.mean(1).max() >= LEVEL_OF_PASS_AT_1 else []
    return found


def instance_family(lost: float, difference_sd: float, rng: np.random.Generator) -> list[Contrast]:
    """A family of one method, and at its end the comparison with an arm that loses `FEWER_LOST` less."""
    worlds = [SimulatedWorld.draw(NUM_PROBLEMS, rng) for _ in range(NUM_INSTANCES)]

    def arm(share: float) -> ArmScores:
        shares = np.maximum(share + difference_sd / np.sqrt(2) * rng.standard_normal(NUM_INSTANCES), 0.002)
        cliffs = [replace(REFERENCE, share=each) for each in shares]
        runs = [runs_at_level(where, cliff, rng) for where, cliff in zip(worlds, cliffs, strict=True)]
        return ArmScores(name="", tables={str(n): scores("passage", own) for n, own in enumerate(runs)})

    reference = arm(lost)
    shares = [lost] * FAMILY_OF_INSTANCES + [lost - FEWER_LOST]
    return [compare_instances(reference, arm(each)) for each in shares]


def instance_rows(num_families: int = NUM_FAMILIES) -> Iterator[list[str]]:
    for lost, difference_sd in LOST:
        rng = np.random.default_rng(0)
        families = [instance_family(lost, difference_sd, rng) for _ in range(num_families)]
        cells = null_cells([family[:-1] for family in families])
        found = [decide(family[1:])[-1].outcome == Outcome.HIGHER for family in families]
        points = 100 * np.mean([family[-1].difference.mean for family in families])
        yield [
            f"{NUM_SEEDS} seeds × {NUM_INSTANCES} instances, lost {lost}, sd {difference_sd}",
            *cells,
            f"{share(found)} at {points:+.1f}",
        ]


def curves(worlds: list[SimulatedWorld], num_seeds: int, rng: np.random.Generator) -> Curves:
    found = {}
    for place, where in enumerate(worlds):
        runs = [simulated_run(where, REFERENCE, rng) for _ in range(num_seeds)]
        ends = [(run.mean(1).numpy(), exact_pass_at_k(run, K).mean(1).numpy()) for run in runs]
        found[str(place)] = np.stack([at_levels(ones, many, LEVELS) for ones, many in ends], axis=1)
    return found


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
    show([f"power at {100 * AT_16_POINTS:.0f} points of pass@64 at the cliff", *ENDPOINTS], power_rows())
    show(["95 % band of a difference", "studies", "hold the whole curve"], band_rows())
    show([f"`passage`, instance as unit, family of {FAMILY_OF_INSTANCES}", *HEADER[1:-2], "power"], instance_rows())

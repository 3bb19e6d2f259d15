"""Simulated runs with a cliff, and how often an endpoint finds a late fall of pass@64.

Near some pass@1 a share of the problems is lost, and pass@64 falls steeply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

from apo_lab.statistics.paths import Sets, last_leave_one_block_out, leave_one_block_out, passage
from apo_lab.statistics.verdicts import ArmScores, Outcome, compare, decide, pseudo_values

NUM_STUDIES, NUM_PROBLEMS, K = 100, 512, 64
BASE, LEVEL = 0.13, 0.36
"""pass@1 of the simulated base model, and L*."""
AT_CLIFF = BASE + 0.85 * (LEVEL - BASE)
"""Where half of the lost probability is gone; half of the fall of pass@64 is then at 90 % of the levels up to L*."""
KEPT_LOSS = 0.10
"""Share of the problems that the better method loses too: APO and a KL penalty lose as much on locks."""
NUM_POINTS = 41
EASE, EASE_SD = -2.3, 1.0
"""Of the base model's log-odds: pass@1 0.13 and pass@64 0.97."""
RISE, RISE_SD, RISE_OF_BOTH_SD = 1.9, 0.13, 0.3
"""Of the log-odds over a run; spread over seeds, and over seeds × problems. A few runs end below a pass@1 of 0.36."""
WOBBLE_SD = 0.02
"""Of all log-odds together, from one evaluation point to the next; as on locks."""
CLIFF_SD, WORLD_SD, CLIFF_WIDTH = 0.008, 0.006, 0.006
"""In pass@1: spread of the cliff over seeds, and over worlds for all methods alike, as on locks; its width."""
LEFT = 1e-3
"""Factor of the success probability of a lost problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedWorld:
    """What all runs of a world have in common."""

    ease: NDArray[np.float64]
    """The base model's log-odds [problems]."""
    tendency: NDArray[np.float64]
    """Of each problem, to be lost; standard normal."""
    later: float
    """Shift of its cliff [pass@1]."""

    @classmethod
    def draw(cls, num_problems: int, rng: np.random.Generator) -> "SimulatedWorld":
        """A world with `num_problems` problems."""
        ease, tendency = rng.standard_normal((2, num_problems))
        return cls(ease=EASE + EASE_SD * ease, tendency=tendency, later=WORLD_SD * rng.standard_normal())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cliff:
    """Where a method loses problems, and how many."""

    middle: float
    """The pass@1 at which the lost problems have half of their probability; pass@64 falls at about 0.02 more."""
    share: float
    """Of the problems, in (0, 1): pass@64 falls by about this much."""


def simulated_run(world: SimulatedWorld, cliff: Cliff, rng: np.random.Generator) -> Float[Tensor, "points problems"]:
    """The probability of a right sample at each evaluation point of one run.

    Without the cliff, problem i has the log-odds ease_i + t·rise_i + wobble_t after a share t of the steps. At the
    cliff a share s of the problems keeps a thousandth of its probability, and that of the others is divided by 1 − s,
    so that pass@1 stays the same. Which problems are lost depends on the problem and on seed × problem in equal
    parts.
    """
    time = np.linspace(0, 1, NUM_POINTS)[:, None]
    of_both, of_loss = rng.standard_normal((2, len(world.ease)))
    rise = RISE + RISE_SD * rng.standard_normal() + RISE_OF_BOTH_SD * of_both
    wobble = WOBBLE_SD * rng.standard_normal((NUM_POINTS, 1)) * (time > 0)
    success = expit(world.ease + wobble + time * rise)
    is_lost = (world.tendency + of_loss) / np.sqrt(2) > norm.isf(cliff.share)
    middle = cliff.middle + world.later + CLIFF_SD * rng.standard_normal()
    reached = np.maximum.accumulate(success.mean(1, keepdims=True))
    fallen = expit((reached - middle) / CLIFF_WIDTH)
    factor = np.where(is_lost, 1 - (1 - LEFT) * fallen, 1 / (1 - cliff.share * fallen))
    return torch.from_numpy(np.minimum(success * factor, 1.0))


def power(
    endpoint: str, seeds: Sequence[int], difference: float, *, family: int, num_studies: int = NUM_STUDIES
) -> float:
    """Share of simulated studies in which the method that keeps pass@64 is found to be `higher`.

    Both methods have the same path of pass@1. In the last fifth of the levels up to L* the first loses `difference`
    more of the problems than the second, which loses a tenth. The random numbers are the same at every call.

    Args:
        endpoint: one of `protocol.ENDPOINTS`.
        seeds: of each method in each world, compared as one.
        difference: of pass@64, in (0, 1).
        family: comparisons of the question; the p-values of the others are 1.
        num_studies: simulated.
    """
    rng = np.random.default_rng(0)
    cliffs = [Cliff(middle=AT_CLIFF, share=share) for share in (KEPT_LOSS + difference, KEPT_LOSS)]
    flat = ArmScores(name="", tables={"": torch.zeros(1, 2)})
    others = [compare(flat, flat)] * (family - 1)
    outcomes = []
    for _ in range(num_studies):
        worlds = [SimulatedWorld.draw(NUM_PROBLEMS, rng) for _ in seeds]
        arms = [
            ArmScores(
                name="",
                tables={
                    str(place): scores(endpoint, [simulated_run(world, cliff, rng) for _ in range(count)])
                    for place, (world, count) in enumerate(zip(worlds, seeds, strict=True))
                },
            )
            for cliff in cliffs
        ]
        if all(len(table) for arm in arms for table in arm.tables.values()):
            outcomes.append(decide([compare(*arms), *others])[0].outcome)
    return outcomes.count(Outcome.HIGHER) / num_studies


def scores(endpoint: str, runs: Sequence[Float[Tensor, "points problems"]]) -> Float[Tensor, "_ blocks"]:
    """`pseudo_values` of an endpoint of simulated runs; those that have none are left out."""
    found = [each for each in (_endpoint(endpoint, run) for run in runs) if each is not None]
    if not found:
        return torch.zeros(0, 1, dtype=torch.float64)
    values = torch.stack(found)
    return pseudo_values(values[:, 0], values[:, 1:])


def _endpoint(endpoint: str, success: Float[Tensor, "points problems"]) -> Sets | None:
    if endpoint == "last":
        return last_leave_one_block_out(success, K)
    measure = passage if endpoint == "passage" else leave_one_block_out
    return measure(success, K, LEVEL)

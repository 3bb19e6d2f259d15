"""Simulated runs with a cliff: near some pass@1 a share of the problems is lost, and pass@64 falls steeply."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import norm
from torch import Tensor

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

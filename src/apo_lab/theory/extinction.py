"""Sampled runs on a bandit: how long until a valid branch is no longer drawn, or is found again."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.theory.expectations import sampled_force
from apo_lab.theory.problems import Tree, bandit
from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.losses import PolicyLoss

VISITS = 200
"""E, how often a run visits the prompt; a branch is extinct below 1/(G·E), when it is drawn less than once in a run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What a set of independent runs did, step by step."""

    rare: Float[Tensor, "steps replicates"]
    """π_k before each step."""
    accuracy: Float[Tensor, "steps replicates"]
    """J before each step."""

    def first(self, below: float) -> Float[Tensor, "replicates"]:
        """The first step with π_k below a threshold; infinite where there is none."""
        return _first(self.rare < below)

    def first_above(self, above: float) -> Float[Tensor, "replicates"]:
        """The first step with π_k at or above a threshold."""
        return _first(self.rare >= above)

    def at_accuracy(self, reached: float) -> Float[Tensor, "found"]:
        """π_k at the first step of J ≥ `reached`, of the runs that have one."""
        steps = _first(self.accuracy >= reached)
        found = steps.isfinite()
        return self.rare[steps[found].long(), found.nonzero()[:, 0]]


def _first(met: Tensor) -> Float[Tensor, "replicates"]:
    step = met.double().argmax(0).double()
    return torch.where(met.any(0), step, torch.inf)


def two_valid() -> tuple[Tree, Float[Tensor, "vocab"]]:
    """(problem, start): a valid d of .40, a valid k of .05, fourteen errors; the reference is the start."""
    start = torch.tensor([0.40, 0.05, *[0.55 / 14] * 14], dtype=torch.float64)
    return bandit(start, (torch.arange(16) < 2).double()), start


def neutral() -> tuple[Tree, Float[Tensor, "vocab"]]:
    """(problem, start): a prefix on which nothing depends, Q = .5; leader .80, k .05; the reference is the start."""
    start = torch.tensor([0.80, 0.05, *[0.15 / 14] * 14], dtype=torch.float64)
    return bandit(start, torch.full((16,), 0.5, dtype=torch.float64)), start


def course(
    start: tuple[Tree, Float[Tensor, "vocab"]],
    loss: PolicyLoss,
    advantage: AdvantageEstimator,
    *,
    group_size: int,
    eta: float,
    steps: int,
    replicates: int,
    branch: int = 1,
    seed: int = 0,
) -> Course:
    """Follow plain gradient steps on sampled groups, each run by itself."""
    problem, probs = start
    generator = torch.Generator().manual_seed(seed)
    logits = probs.log().expand(replicates, 1, -1).clone()
    rare, accuracy = [], []
    for _ in range(steps):
        policy = logits[:, 0].softmax(1)
        rare.append(policy[:, branch])
        accuracy.append(policy @ problem.success)
        logits = logits + eta * sampled_force(problem, logits, loss, advantage, group_size, generator)
    return Course(rare=torch.stack(rare), accuracy=torch.stack(accuracy))

"""Following a force: gradient flow, optimizer steps on one rollout, and runs on sampled groups."""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lab.theory.expectations import sampled_force
from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import Tree, bandit, constant, dist
from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.losses import PolicyLoss

TWO_VALID = bandit(dist(0.40, 0.05, *[0.55 / 14] * 14), (torch.arange(16) < 2).double())
"""A valid d of .40, a valid k of .05 and fourteen errors."""
NEUTRAL = bandit(dist(0.80, 0.05, *[0.15 / 14] * 14), constant(0.5, 16))
"""All tokens have Q = .5; the leader has .80, k .05."""
Force = Callable[[Tensor], Tensor]
"""Maps logits to the force on them, of the same shape."""
VISITS = 200
"""E, how often a run visits the prompt. A branch is extinct below 1/(G·E): a run then samples it less than once."""


def flow(
    logits: Float[Tensor, "*batch vocab"], force: Force, end: float, *, stride: float = 0.01, growth: float = math.inf
) -> Float[Tensor, "*batch vocab"]:
    """Integrate dz/dt = f(z) from t = 0 to `end` [1/η] with Euler steps.

    A step moves a logit by at most `stride` [nats] and takes at most a share `growth` of t + 1, which keeps slow decays
    over many decades of time as finely resolved late as early.
    """
    time = 0.0
    while time < end:
        direction = force(logits)
        size = min(stride / max(direction.abs().max().item(), 1e-300), end - time, growth * (1 + time))
        logits = logits + size * direction
        time += size
    return logits


def inner_steps(logits: Float[Tensor, "*shape"], force: Force, eta: float, count: int) -> Float[Tensor, "steps *shape"]:
    """The logits before and after each of `count` optimizer steps on one rollout."""
    path = [logits]
    for _ in range(count):
        path.append(path[-1] + eta * force(path[-1]))
    return torch.stack(path)


def ratios(
    loss: PolicyLoss, old: Float[Tensor, "vocab"], ref: Float[Tensor, "vocab"], eta: float, count: int
) -> Float[Tensor, "steps vocab"]:
    """π/π_old of each token before and after each of `count` inner steps on the error 0."""
    path = inner_steps(old.log(), lambda z: token_forces(loss, z, ref, 0, old_logits=old.log()), eta, count)
    return path.softmax(1) / old


def first_step(is_met: Bool[Tensor, "steps replicates"]) -> Float[Tensor, "replicates"]:
    """The first step at which a condition is met; infinite if it never is."""
    return torch.where(is_met.any(0), is_met.double().argmax(0).double(), torch.inf)


def course(
    problem: Tree,
    loss: PolicyLoss,
    advantage: AdvantageEstimator,
    *,
    group_size: int,
    eta: float,
    replicates: int,
    steps: int = VISITS,
    start: Float[Tensor, "vocab"] | None = None,
) -> tuple[Float[Tensor, "steps replicates"], Float[Tensor, "steps replicates"]]:
    """(π_k, J) before each gradient step on sampled groups of a bandit, in independent runs; k is token 1.

    Runs begin at `start`, or else at the reference.
    """
    generator = torch.Generator().manual_seed(0)
    logits = (problem.ref[0] if start is None else start).log().expand(replicates, 1, -1)
    rare, accuracy = [], []
    for _ in range(steps):
        policy = logits[:, 0].softmax(1)
        rare.append(policy[:, 1])
        accuracy.append(policy @ problem.success)
        logits = logits + eta * sampled_force(problem, logits, loss, advantage, group_size, generator)
    return torch.stack(rare), torch.stack(accuracy)

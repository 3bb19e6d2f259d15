"""The force of a prompt's group at the first optimizer step, r = 1: its exact expectation, and samples of it.

A step's force is Σ w·(−∂loss/∂z) over the group's tokens; each completion has w = 1/(kept completions · L).
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import binom
from torch import Tensor

from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import Tree, dist
from apo_lightning.advantages import AdvantageEstimator, GroupNormalized, SignedReward
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.types import AdvantageInputs

GROUP, NSR = GroupNormalized(), SignedReward()
PSR, POLICY_GRADIENT = SignedReward(positive_weight=1.0, negative_weight=0.0), SignedReward(positive_weight=1.0)
"""Estimators of the statements and figures: GRPO's, errors alone, right answers alone, and A = ±1."""
LONG = 2**20
"""A length limit that no completion here comes near."""


def cases(
    advantage: AdvantageEstimator, accuracy: float, group_size: int | None
) -> tuple[Float[Tensor, "2 cases"], Float[Tensor, "2 cases"]]:
    """(weights, advantages) that a right completion (row 0) and a wrong one (row 1) can get under an estimator.

    The number of other right completions is Bin(G − 1, J); without `group_size` G is infinite. A weight is a case's
    expected share of the step's weight: the expected force is Σ weight·force over the cases.

    Example:
        Of two completions with J = ½: A = ±1/√2 if one of them is right, 0 if both agree.

        >>> weights, advantages = cases(GroupNormalized(), 0.5, 2)
        >>> weights[0], advantages[0]
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([0.7071, 0.0000], dtype=torch.float64))
    """
    if group_size is None:
        return _limit(advantage, accuracy)
    others = torch.arange(group_size)
    chance = torch.from_numpy(binom.pmf(others.numpy(), group_size - 1, accuracy))
    # Row c of the groups has c right completions, which come first.
    is_correct = torch.arange(group_size) < torch.arange(group_size + 1)[:, None]
    values, weights = weighted_advantages(advantage, is_correct)
    of_right, of_wrong = (others + 1, 0), (others, -1)
    return (
        torch.stack([chance * group_size * weights[of_right], chance * group_size * weights[of_wrong]]),
        torch.stack([values[of_right], values[of_wrong]]),
    )


def _limit(advantage: AdvantageEstimator, accuracy: float) -> tuple[Float[Tensor, "2 1"], Float[Tensor, "2 1"]]:
    failure = 1 - accuracy
    if isinstance(advantage, SignedReward):
        positive, negative = advantage.positive_weight, advantage.negative_weight
        kept = accuracy * (positive > 0) + failure * (negative > 0)
        weights = dist(positive > 0, negative > 0) / kept if kept else dist(0, 0)
        return weights[:, None], dist(positive, -negative)[:, None]
    if not isinstance(advantage, GroupNormalized):
        raise ConfigError(f"{type(advantage).__name__} has no limit for large groups here: give a group size")
    sigma = math.sqrt(accuracy * failure) if advantage.normalize_std else 1.0
    return dist(1, 1)[:, None], dist(failure, -accuracy)[:, None] * (1 / sigma if sigma else 0.0)


def weighted_advantages(
    advantage: AdvantageEstimator,
    is_correct: Bool[Tensor, "groups size"],
    tokens: Int[Tensor, "groups size"] | None = None,
    logprobs: Float[Tensor, "groups size"] | None = None,
) -> tuple[Float[Tensor, "groups size"], Float[Tensor, "groups size"]]:
    """(advantages, weights in the step); a group of which nothing is kept has weight 0.

    Tokens and log-probs are those of the completions, for an estimator that reads answers or likelihoods.
    """
    inputs = AdvantageInputs(
        rewards=is_correct.double(),
        is_correct=is_correct,
        lengths=torch.ones_like(is_correct, dtype=torch.long),
        truncated=torch.zeros_like(is_correct),
        mean_logprobs=logprobs,
        answers=None if tokens is None else tuple(tuple(map(str, row)) for row in tokens.tolist()),
        max_completion_tokens=LONG,
    )
    result = advantage(inputs)
    keep = result.keep.double()
    return result.values.double(), keep / keep.sum(1, keepdim=True).clamp(min=1)


def expected_force(
    problem: Tree,
    logits: Float[Tensor, "nodes vocab"],
    loss: PolicyLoss,
    advantage: AdvantageEstimator,
    group_size: int | None = None,
) -> Float[Tensor, "nodes vocab"]:
    """Exact expectation of the force on the logits of every node [nats per unit of η].

        f(n) = P(n)/L · Σ_y π(y|n) · [Q(n,y)·E(w·F⁺) + (1 − Q(n,y))·E(w·F⁻)]

    Exactly 0 under a group-normalised advantage if Q is all 0 or all 1. For an infinite group (`group_size` None) the
    estimator must have a limit in `_limit`.
    """
    probs = logits.softmax(1)
    quality = problem.success_of_tokens(probs)
    weights, advantages = cases(advantage, problem.accuracy(probs), group_size)
    forces = token_forces(
        loss,
        logits[:, None, None, None].expand(*logits.shape, *weights.shape, -1),
        problem.ref.to(logits)[:, None, None, None],
        torch.arange(logits.shape[1])[:, None, None],
        advantages,
        torch.tensor([[True], [False]]),
    )
    chance = torch.stack([quality, 1 - quality], dim=2)[..., None] * weights
    share = (problem.visits(probs) / problem.depth)[:, None, None, None] * probs[..., None, None] * chance
    return (share[..., None] * forces).sum((1, 2, 3))


def sampled_force(
    problem: Tree,
    logits: Float[Tensor, "replicates nodes vocab"],
    loss: PolicyLoss,
    advantage: AdvantageEstimator,
    group_size: int,
    generator: torch.Generator,
) -> Float[Tensor, "replicates nodes vocab"]:
    """The force of one sampled group for each of several policies; their mean tends to `expected_force`."""
    replicates, num_nodes, vocab = logits.shape
    nodes = torch.zeros(replicates, group_size, dtype=torch.long)
    visited = []
    for _ in range(problem.depth):
        index = nodes[..., None].expand(-1, -1, vocab)
        here = logits.gather(1, index)
        drawn = torch.multinomial(here.softmax(2).flatten(0, 1), 1, generator=generator).view_as(nodes)
        visited.append((index, here, problem.ref.to(logits)[nodes], drawn))
        nodes = problem.children(nodes, drawn)
    chance = problem.success.to(logits)[nodes - num_nodes]
    is_correct = torch.rand(chance.shape, generator=generator, dtype=logits.dtype) < chance
    logprobs = torch.stack([here.log_softmax(2).gather(2, y[..., None])[..., 0] for _, here, _, y in visited]).mean(0)
    advantages, weights = weighted_advantages(advantage, is_correct, visited[-1][3], logprobs)
    force = torch.zeros_like(logits)
    for index, here, ref, drawn in visited:
        values = token_forces(loss, here, ref, drawn, advantages, is_correct)
        force.scatter_add_(1, index, values * weights[..., None] / problem.depth)
    return force

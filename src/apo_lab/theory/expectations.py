"""The force of a prompt's group at the first optimizer step, r = 1: its exact expectation, and samples of it.

A step's force is Σ w·(−∂loss/∂z) over the group's tokens; each completion has w = 1/(kept completions · L).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from scipy.stats import binom
from torch import Tensor

from apo_lab.theory.forces import token_forces
from apo_lab.theory.problems import Tree
from apo_lightning.advantages import AdvantageEstimator, GroupNormalized, LeaveOneOut, SignedReward
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.types import AdvantageInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One possible advantage of a completion with a given verdict, and its expected share of the gradient."""

    weight: float
    """Expected share of the step's weight: the expected force is Σ weight·force over the cases."""
    advantage: float


def cases(advantage: AdvantageEstimator, accuracy: float, group_size: int | None) -> tuple[list[Case], list[Case]]:
    """(cases of right completions, cases of wrong ones) under an estimator that trains.

    With c of G right the estimator gives A⁺(c) and A⁻(c); the number of other right ones is Bin(G − 1, J).

    Args:
        advantage: an estimator.
        accuracy: J.
        group_size: G; None: infinite, by the limits written out in `_limit`.

    Example:
        Of two completions with J = ½: A = ±1/√2 if one of them is right, 0 if both agree.

        >>> right, _ = cases(GroupNormalized(), 0.5, 2)
        >>> [(round(case.weight, 4), round(case.advantage, 4)) for case in right]
        [(0.5, 0.7071), (0.5, 0.0)]
    """
    if group_size is None:
        return _limit(advantage, accuracy)
    right, wrong = [], []
    for others in range(group_size):
        chance = float(binom.pmf(others, group_size - 1, accuracy))
        right.append(_case(advantage, others + 1, group_size, index=0, chance=chance))
        wrong.append(_case(advantage, others, group_size, index=-1, chance=chance))
    return right, wrong


def _case(advantage: AdvantageEstimator, correct: int, group_size: int, *, index: int, chance: float) -> Case:
    is_correct = torch.arange(group_size)[None] < correct
    lengths = torch.ones_like(is_correct, dtype=torch.long)
    result = advantage(AdvantageInputs(rewards=is_correct.double(), is_correct=is_correct, lengths=lengths))
    if not result.keep[0, index]:
        return Case(weight=0.0, advantage=0.0)
    share = group_size / int(result.keep.sum())
    return Case(weight=chance * share, advantage=result.values[0, index].item())


def _limit(advantage: AdvantageEstimator, accuracy: float) -> tuple[list[Case], list[Case]]:
    failure = 1 - accuracy
    if isinstance(advantage, SignedReward):
        positive, negative = advantage.positive_weight, advantage.negative_weight
        kept = accuracy * (positive > 0) + failure * (negative > 0)
        cases_of = [
            [Case(weight=is_kept / kept if kept else 0.0, advantage=float(value))]
            for value, is_kept in ((positive, positive > 0), (-negative, negative > 0))
        ]
        return cases_of[0], cases_of[1]
    if not isinstance(advantage, GroupNormalized | LeaveOneOut):
        raise ConfigError(f"{type(advantage).__name__} has no limit for large groups here: give a group size")
    divides = isinstance(advantage, GroupNormalized) and advantage.normalize_std
    sigma = math.sqrt(accuracy * failure) if divides else 1.0
    scale = 1 / sigma if sigma else 0.0
    return [Case(weight=1.0, advantage=failure * scale)], [Case(weight=1.0, advantage=-accuracy * scale)]


def expected_force(
    problem: Tree,
    logits: Float[Tensor, "nodes vocab"],
    loss: PolicyLoss,
    advantage: AdvantageEstimator,
    group_size: int | None = None,
) -> Float[Tensor, "nodes vocab"]:
    """Exact expectation of the force on the logits of every node [nats per unit of η].

        f(n) = P(n)/L · Σ_y π(y|n) · [Q(n,y)·E(w·F⁺) + (1 − Q(n,y))·E(w·F⁻)]

    Exactly 0 under a group-normalised advantage if Q is all 0 or all 1.

    Args:
        problem: reference and probabilities of reward.
        logits: z of the policy, float64.
        loss: one of `apo_lightning.losses`.
        advantage: one of `apo_lightning.advantages`.
        group_size: G; None: infinite.
    """
    nodes, vocab = logits.shape
    probs = logits.softmax(1)
    quality = problem.success_of_tokens(probs)
    right, wrong = cases(advantage, problem.accuracy(probs), group_size)
    all_cases = [*right, *wrong]
    weight = torch.tensor([case.weight for case in all_cases], dtype=logits.dtype)
    values = torch.tensor([case.advantage for case in all_cases], dtype=logits.dtype)
    is_right = torch.arange(len(all_cases)) < len(right)
    shape = (nodes, vocab, len(all_cases))
    rows = torch.arange(nodes).repeat_interleave(vocab * len(all_cases))
    forces = token_forces(
        loss,
        logits[rows],
        problem.ref.to(logits)[rows],
        torch.arange(vocab)[None, :, None].expand(shape).flatten(),
        values.expand(shape).flatten(),
        is_right.expand(shape).flatten(),
    ).view(*shape, vocab)
    verdict = torch.where(is_right, quality[..., None], 1 - quality[..., None])
    share = (problem.visits(probs) / problem.depth)[:, None, None] * probs[..., None] * verdict * weight
    return (share[..., None] * forces).sum((1, 2))


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
    probs = logits.softmax(2)
    nodes = torch.zeros(replicates, group_size, dtype=torch.long)
    visited, tokens = [], []
    for _ in range(problem.depth):
        here = probs.gather(1, nodes[..., None].expand(-1, -1, vocab))
        drawn = torch.multinomial(here.flatten(0, 1), 1, generator=generator).view(replicates, group_size)
        visited.append(nodes)
        tokens.append(drawn)
        nodes = problem.children(nodes, drawn)
    chance = problem.success.to(logits)[nodes - num_nodes]
    is_correct = torch.rand(chance.shape, generator=generator, dtype=logits.dtype) < chance
    weighted = _weighted_advantages(advantage, is_correct, logits.dtype)
    force = torch.zeros(replicates * num_nodes, vocab, dtype=logits.dtype)
    row = torch.arange(replicates)[:, None] * num_nodes
    for level_nodes, level_tokens in zip(visited, tokens, strict=True):
        at = (row + level_nodes).flatten()
        values = token_forces(
            loss,
            logits.flatten(0, 1)[at],
            problem.ref.to(logits)[level_nodes.flatten()],
            level_tokens.flatten(),
            weighted[0].flatten(),
            is_correct.flatten(),
        )
        force.index_add_(0, at, values * weighted[1].flatten()[:, None] / problem.depth)
    return force.view_as(logits)


def _weighted_advantages(
    advantage: AdvantageEstimator, is_correct: Bool[Tensor, "replicates group"], dtype: torch.dtype
) -> tuple[Float[Tensor, "replicates group"], Float[Tensor, "replicates group"]]:
    """(advantages, weights in the step); a group of which nothing is kept has weight 0."""
    lengths = torch.ones_like(is_correct, dtype=torch.long)
    result = advantage(AdvantageInputs(rewards=is_correct.to(dtype), is_correct=is_correct, lengths=lengths))
    keep = result.keep.to(dtype)
    return result.values.to(dtype), keep / keep.sum(1, keepdim=True).clamp(min=1)

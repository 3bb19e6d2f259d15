"""Which completions are scored though the update skips them, so that a step's means are over all of its tokens."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Rollouts

SMALLEST = 4
"""Completions: of one there is no standard error, and one from two or three says little."""


def draw_subset(
    rollouts: Rollouts, required: Bool[Tensor, "sequences"], fraction: float | int, seed: int
) -> Bool[Tensor, "sequences"]:
    """A simple random sample, over all ranks, of the completions that nothing requires to be scored.

    Each completion has a priority that depends on the run's seed and on what the completion is, so the same ones come
    first whatever the algorithm, the number of ranks, or a resume.

    Args:
        rollouts: sampled by this rank.
        required: those of them that are scored anyway.
        fraction: of all completions of the step; see `subset_size`.
        seed: the run's.

    Returns:
        True for those of this rank that are drawn.
    """
    candidates = (~required).nonzero().flatten().tolist()
    priorities = [
        sample_seed(
            seed, "subset", rollouts.step, rollouts.prompts[b // rollouts.group_size].id, b % rollouts.group_size
        )
        for b in candidates
    ]
    parts = from_all_ranks((priorities, len(required)))
    size = subset_size(sum(num_completions for _, num_completions in parts), fraction)
    rank = process_rank()
    drawn = torch.zeros_like(required)
    drawn[[candidates[i] for owner, i in smallest([part for part, _ in parts], size) if owner == rank]] = True
    return drawn


def smallest(parts: Sequence[Sequence[int]], size: int) -> list[tuple[int, int]]:
    """(part, place) of the `size` smallest values of all parts, or of all values where there are fewer.

    Example:
        >>> smallest([[30, 10], [20]], size=2)
        [(0, 1), (1, 0)]
    """
    places = sorted((value, part, place) for part, values in enumerate(parts) for place, value in enumerate(values))
    return [(part, place) for _, part, place in places[:size]]


def subset_size(num_completions: int, fraction: float | int) -> int:
    """How many are drawn, where so many are left out: ⌈fraction·B⌉, but at least `SMALLEST`; 0 for a fraction of 0.

    Example:
        >>> [subset_size(4096, fraction) for fraction in (0.0, 1 / 64, 1.0)], subset_size(16, 1 / 64)
        ([0, 64, 4096], 4)
    """
    return max(SMALLEST, math.ceil(fraction * num_completions)) if fraction > 0 else 0

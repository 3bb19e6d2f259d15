"""A random sample of the completions that the update skips: scored, so that means are over all tokens of a step."""

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
"""Completions: from one there is no standard error, and from two or three a poor one."""


def draw_subset(
    rollouts: Rollouts, required: Bool[Tensor, "sequences"], fraction: float | int, seed: int
) -> Bool[Tensor, "sequences"]:
    """A simple random sample, over all ranks, of the completions that need not be scored.

    A completion's priority is a hash of the run's seed, step, prompt and sample index, so the order depends neither on
    the algorithm nor on the number of ranks nor on a resume. The `required` completions are scored in any case, and
    `fraction` is of all completions of the step (see `subset_size`). True for this rank's completions that are drawn.
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
    """The number of completions that are drawn: ⌈fraction·B⌉, but at least `SMALLEST`; 0 for a fraction of 0.

    Example:
        >>> [subset_size(4096, fraction) for fraction in (0.0, 1 / 64, 1.0)], subset_size(16, 1 / 64)
        ([0, 64, 4096], 4)
    """
    return max(SMALLEST, math.ceil(fraction * num_completions)) if fraction > 0 else 0

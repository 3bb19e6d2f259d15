"""Random samples of a step's completions, over all ranks, the probe that scores them, and shares over all ranks."""

import math
from collections.abc import Sequence

from apo_lightning.step.subset import smallest
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Probe, Rollouts


def sampled_completions(
    rollouts: Rollouts, is_candidate: Bool[Tensor, "completions"], size: int, *, seed: int, stream: str
) -> list[int]:
    """This rank's part of a simple random sample of the candidates of all ranks, in ascending order. Collective.

    A completion's priority is a hash of the run's seed, `stream`, the step, its prompt and its sample. The sample
    therefore does not depend on the number of ranks, and a resumed run takes the same one. `size` counts all ranks;
    all candidates are taken if there are fewer.
    """
    candidates = is_candidate.nonzero().flatten().tolist()
    priorities = [
        sample_seed(seed, stream, rollouts.step, rollouts.prompts[b // rollouts.group_size].id, b % rollouts.group_size)
        for b in candidates
    ]
    rank = process_rank()
    return sorted(candidates[i] for owner, i in smallest(from_all_ranks(priorities), size) if owner == rank)


def before_and_after(rollouts: Rollouts, chosen: Sequence[int], anchor_size: int) -> Probe:
    """A probe that scores some completions, with K anchors, before and after the update."""
    return Probe(
        prompts=[rollouts.prompts[b // rollouts.group_size].token_ids for b in chosen],
        completions=[rollouts.completions[b].token_ids for b in chosen],
        anchors=anchor_size,
        before=True,
    )


def share_over_ranks(part: float | int, whole: int) -> float:
    """Σ part / Σ whole over all ranks; NaN where the whole is 0. Collective."""
    numerator, denominator = (sum(column) for column in zip(*from_all_ranks((part, whole)), strict=True))
    return numerator / denominator if denominator else math.nan

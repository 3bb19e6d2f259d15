"""Which completions a diagnostic looks at: a random sample over all ranks that depends on no generator."""

from collections.abc import Sequence

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Rollouts
from apo_lightning.update.subset import smallest


def drawn_completions(rollouts: Rollouts, candidates: Sequence[int], size: int, *, seed: int, stream: str) -> list[int]:
    """A simple random sample of the candidates of all ranks: those of them that this rank has, ascending. Collective.

    A completion's priority is a hash of the run's seed, `stream`, the step, its prompt and its sample, so the choice is
    the same whatever the number of ranks, and the same in a run that is gone on from.

    Args:
        rollouts: of this rank.
        candidates: its completions to choose from.
        size: how many are drawn over all ranks; all of them where there are fewer.
        seed: the run's.
        stream: another name draws others.
    """
    priorities = [
        sample_seed(seed, stream, rollouts.step, rollouts.prompts[b // rollouts.group_size].id, b % rollouts.group_size)
        for b in candidates
    ]
    rank = process_rank()
    return sorted(candidates[i] for owner, i in smallest(from_all_ranks(priorities), size) if owner == rank)

"""Two methods on the same problems: by how much they differ, and how many problems only one of them solves."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.statistics.seeds import seed_difference_intervals
from apo_lightning.errors import ConfigError
from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.intervals import Interval, paired_interval

NUM_NAMED = 5
"""Number of problem ids named in an error line."""


@runtime_checkable
class Counts(Protocol):
    """Samples and correct samples of one problem, such as `evaluation.records.ProblemCount`."""

    @property
    def prompt_id(self) -> str:
        """Name of the problem, unique within the problems of a policy."""
        ...

    @property
    def num_samples(self) -> int:
        """n, the number of samples."""
        ...

    @property
    def num_correct(self) -> int:
        """c, the number of correct samples, in [0, n]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Method B against method A on the same problems."""

    k: int
    num_problems: int
    num_seeds_a: int
    num_seeds_b: int
    """With one seed an arm stands for that checkpoint alone, and `difference` says nothing of its method."""
    pass_at_k_a: float
    """Mean pass@k of A over seeds and problems."""
    pass_at_k_b: float
    difference: Interval
    """B − A of pass@k, its 95 % interval paired by problem; the ends are NaN where all seeds and problems agree."""
    num_lost: float
    """Problems that k samples of A solve at least once and k of B never, as expected of a seed of each."""
    num_gained: float
    """Problems that k samples of B solve at least once and k of A never, as expected of a seed of each."""


def compare_methods(seeds_a: Sequence[Sequence[Counts]], seeds_b: Sequence[Sequence[Counts]], k: int) -> Comparison:
    """Compare method A with method B; problems are matched by their ids, not by their places.

    With p the pass@k of a problem, mean over seeds, num_lost = Σ_i p_A,i·(1 − p_B,i): with one seed each and k = n the
    number of problems that A solved and B did not. Counts over all seeds' samples together would depend on how many
    seeds there are.

    The interval is `seeds.seed_difference_intervals`; with one seed each `intervals.paired_intervals`, whose scope is
    these two checkpoints.

    Args:
        seeds_a: the problems of A, for each of its training seeds.
        seeds_b: those of B: the same ids, in any order.
        k: of pass@k, at most the samples of any problem of either.

    Raises:
        ConfigError: the ids differ or repeat, there are no seeds or problems, or k or a count is out of range.

    Example:
        >>> from collections import namedtuple
        >>> Problem = namedtuple("Problem", ["prompt_id", "num_samples", "num_correct"])
        >>> a, b = [Problem("x", 2, 1), Problem("y", 2, 0)], [Problem("y", 2, 2), Problem("x", 2, 0)]
        >>> result = compare_methods([a], [b], k=1)
        >>> result.difference.mean, result.num_lost, result.num_gained
        (0.25, 0.5, 1.0)
    """
    if not seeds_a or not seeds_b:
        raise ConfigError("a comparison needs at least one seed of either method")
    first = seeds_a[0]
    scores_a, scores_b = (
        torch.stack([_scores(_matched(first, counts), k) for counts in seeds]) for seeds in (seeds_a, seeds_b)
    )
    if len(seeds_a) == len(seeds_b) == 1:
        difference = paired_interval(scores_a[0], scores_b[0])
    else:
        (difference,) = seed_difference_intervals(scores_a[:, :, None], scores_b[:, :, None])
    mean_a, mean_b = scores_a.mean(0), scores_b.mean(0)
    return Comparison(
        k=k,
        num_problems=len(first),
        num_seeds_a=len(seeds_a),
        num_seeds_b=len(seeds_b),
        pass_at_k_a=mean_a.mean().item(),
        pass_at_k_b=mean_b.mean().item(),
        difference=difference,
        num_lost=(mean_a * (1 - mean_b)).sum().item(),
        num_gained=(mean_b * (1 - mean_a)).sum().item(),
    )


def _matched(counts_a: Sequence[Counts], counts_b: Sequence[Counts]) -> list[Counts]:
    """The problems of B in the order of A."""
    ids_a, ids_b = ([count.prompt_id for count in counts] for counts in (counts_a, counts_b))
    if repeated := [name for ids in (ids_a, ids_b) for name, times in Counter(ids).items() if times > 1]:
        raise ConfigError(f"two policies cannot be matched by problem: {_named(repeated)} occur more than once")
    only_a, only_b = (
        [name for name in ids if name not in set(others)] for ids, others in ((ids_a, ids_b), (ids_b, ids_a))
    )
    if only_a or only_b:
        raise ConfigError(
            f"two policies were measured on different problems: {_named(only_a)} only the first, "
            f"{_named(only_b)} only the second; compare evaluations of one benchmark"
        )
    by_id = {count.prompt_id: count for count in counts_b}
    return [by_id[name] for name in ids_a]


def _named(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - NUM_NAMED} more" if len(ids) > NUM_NAMED else ""
    return (", ".join(ids[:NUM_NAMED]) or "none") + more


def _scores(counts: Sequence[Counts], k: int) -> Float[Tensor, "problems"]:
    num_samples = torch.tensor([count.num_samples for count in counts], dtype=torch.long)
    num_correct = torch.tensor([count.num_correct for count in counts], dtype=torch.long)
    return pass_at_k(num_samples, num_correct, k)

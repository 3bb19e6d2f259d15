"""Two policies on the same problems: by how much they differ, and which problems only one of them solves."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.intervals import Interval, paired_interval

NUM_NAMED = 5
"""Problem ids in an error line."""


@runtime_checkable
class Counts(Protocol):
    """How one problem went, such as `evaluation.records.ProblemCount`."""

    @property
    def prompt_id(self) -> str:
        """Unique within the problems of a policy."""
        ...

    @property
    def num_samples(self) -> int:
        """Of n."""
        ...

    @property
    def num_correct(self) -> int:
        """Of them, in [0, n]."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Policy B against policy A on the same problems."""

    k: int
    num_problems: int
    pass_at_k_a: float
    """Mean over problems."""
    pass_at_k_b: float
    difference: Interval
    """B − A of pass@k, with its 95 % interval, paired by problem."""
    lost: tuple[str, ...]
    """Problems that A solved at least once and B never; in A's order."""
    gained: tuple[str, ...]
    """Problems that B solved at least once and A never."""


def compare(counts_a: Sequence[Counts], counts_b: Sequence[Counts], k: int) -> Comparison:
    """What changes from policy A to policy B; problems are matched by their ids, not by their places.

    Whether a problem is lost or gained depends on n: a policy given more samples solves more problems at least once.

    Args:
        counts_a: the problems of A.
        counts_b: those of B: the same ids, in any order.
        k: of pass@k, at most the samples of any problem of either.

    Raises:
        ConfigError: the ids differ or repeat, there are no problems, or k or a count is out of range.

    Example:
        >>> from collections import namedtuple
        >>> Problem = namedtuple("Problem", ["prompt_id", "num_samples", "num_correct"])
        >>> a, b = [Problem("x", 2, 1), Problem("y", 2, 0)], [Problem("y", 2, 2), Problem("x", 2, 0)]
        >>> result = compare(a, b, k=1)
        >>> result.difference.mean, result.lost, result.gained
        (0.25, ('x',), ('y',))
    """
    of_b = _matched(counts_a, counts_b)
    scores_a, scores_b = _scores(counts_a, k), _scores(of_b, k)
    pairs = list(zip(counts_a, of_b, strict=True))
    return Comparison(
        k=k,
        num_problems=len(pairs),
        difference=paired_interval(scores_a, scores_b),
        pass_at_k_a=scores_a.mean().item(),
        pass_at_k_b=scores_b.mean().item(),
        lost=tuple(a.prompt_id for a, b in pairs if a.num_correct > 0 and b.num_correct == 0),
        gained=tuple(a.prompt_id for a, b in pairs if a.num_correct == 0 and b.num_correct > 0),
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

"""Two methods on the same problems: their difference, and how many problems only one of them solves."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.statistics.seeds import seed_difference_intervals
from apo_lightning.evaluation.records import ProblemCount
from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.intervals import Interval, paired_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Method B against method A on the same problems."""

    k: int
    num_problems: int
    num_seeds_a: int
    num_seeds_b: int
    """With one seed `difference` is about that checkpoint, not about its method."""
    difference: Interval
    """pass@k of B minus A, 95 % interval paired by problem; the ends are NaN if all seeds and problems agree."""
    num_lost: float
    """Expected number of problems that k samples of A solve at least once and k of B never, for one seed each."""
    num_gained: float
    """The same with A and B exchanged."""


def compare_methods(
    seeds_a: Sequence[Sequence[ProblemCount]], seeds_b: Sequence[Sequence[ProblemCount]], k: int
) -> Comparison:
    """Compare method A with method B; problems are matched by their ids.

    With p the pass@k of a problem, averaged over seeds, num_lost = Σ_i p_A,i·(1 − p_B,i): with one seed each and k = n
    it is the number of problems that A solved and B did not, and it does not depend on the number of seeds.

    The interval is `seeds.seed_difference_intervals`, or `intervals.paired_interval` with one seed each.

    Args:
        seeds_a: the problems of A, for each of its training seeds.
        seeds_b: those of B: the same ids, in any order.
        k: of pass@k; at most the number of samples of any problem.

    Raises:
        ConfigError: there are no problems, or k or a count is out of range.

    Example:
        >>> def problem(name, correct):
        ...     return ProblemCount(prompt_id=name, num_samples=2, num_correct=correct)
        >>> a, b = [problem("x", 1), problem("y", 0)], [problem("y", 2), problem("x", 0)]
        >>> result = compare_methods([a], [b], k=1)
        >>> result.difference.mean, result.num_lost, result.num_gained
        (0.25, 0.5, 1.0)
    """
    ids = [count.prompt_id for count in seeds_a[0]]
    scores_a, scores_b = (torch.stack([_scores(counts, ids, k) for counts in seeds]) for seeds in (seeds_a, seeds_b))
    if len(seeds_a) == len(seeds_b) == 1:
        difference = paired_interval(scores_a[0], scores_b[0])
    else:
        (difference,) = seed_difference_intervals(scores_a[:, :, None], scores_b[:, :, None])
    mean_a, mean_b = scores_a.mean(0), scores_b.mean(0)
    return Comparison(
        k=k,
        num_problems=len(ids),
        num_seeds_a=len(seeds_a),
        num_seeds_b=len(seeds_b),
        difference=difference,
        num_lost=(mean_a * (1 - mean_b)).sum().item(),
        num_gained=(mean_b * (1 - mean_a)).sum().item(),
    )


def _scores(counts: Sequence[ProblemCount], ids: Sequence[str], k: int) -> Float[Tensor, "problems"]:
    """pass@k of the problems in the order of `ids`."""
    by_id = {count.prompt_id: (count.num_samples, count.num_correct) for count in counts}
    drawn, correct = torch.tensor([by_id[name] for name in ids], dtype=torch.long).view(-1, 2).T
    return pass_at_k(drawn, correct, k)

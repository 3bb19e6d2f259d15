"""What a policy loses at each entrance, where skills are estimated from samples behind it."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.statistics.entrances import Entrances, change_of_pass_at_k
from apo_lightning.metrics.intervals import Interval, paired_intervals

NUM_RESAMPLES = 200
"""Determines the mean of a resampled part to 0.07 of its standard deviation."""


def sampled_change(
    before: Entrances, after: Entrances, k: int, num_forced: int
) -> tuple[dict[str, Interval], dict[str, Float[Tensor, "entrances"]]]:
    """The parts `locked`, `opened`, `forgotten` and `learnt` of the change of pass@k, their sum, and those by entrance.

    The parts of `change_of_pass_at_k` are polynomials of degree k in the skills, so shares q̂(e) of `num_forced` samples
    give biased ones: pass@k itself comes out too low, by about k²/2·Var(s). The bias is that of shares drawn from q̂
    in place of q, and is taken off, here for `NUM_RESAMPLES` draws:

        part = 2·part(q̂) − mean of part(q*),   q*(e) ~ Binomial(num_forced, q̂(e))/num_forced

    A share of 0 or 1 has no spread in this, so what hides behind it stays uncorrected.

    The intervals are `paired_intervals` over problems, whose spread holds the noise of the samples too.

    Args:
        before: masses p(e), and shares of right samples in place of the skills.
        after: the same entrances in the same order.
        k: ≥ 1, well below `num_forced`.
        num_forced: samples behind each entrance.

    Source: the bootstrap correction of a bias, Efron and Tibshirani 1993, chapter 10.

    Example:
        All skills are known, so nothing is corrected: p falls from 1 to ½.

        >>> def of(p):
        ...     values = {"mass": torch.tensor([p]).double(), "skill": torch.tensor([1.0]).double()}
        ...     return Entrances(problem=torch.tensor([0]), num_problems=1, **values)
        >>> parts, _ = sampled_change(of(1.0), of(0.5), k=2, num_forced=8)
        >>> parts["locked"].mean, parts["change"].mean
        (-0.25, -0.25)
    """
    generator = torch.Generator().manual_seed(0)
    change = change_of_pass_at_k(before, after, k).signed()
    of_before, of_after = (_resampled(entrances, num_forced, generator) for entrances in (before, after))
    again = change_of_pass_at_k(of_before, of_after, k).signed()
    parts = {
        name: 2 * part - again[name].view(NUM_RESAMPLES, -1).mean(0) for name, part in change.items()
    }  # the sum of the means is the mean of the sums, so the parts still add up
    of_problems = {name: before.summed(part) for name, part in parts.items()}
    of_problems["change"] = torch.stack([*of_problems.values()]).sum(0)
    values = torch.stack([*of_problems.values()], dim=1).clamp(-1, 1)  # a correction can lift one above 1
    intervals = paired_intervals(torch.zeros_like(values), values)
    return dict(zip(of_problems, intervals, strict=True)), parts


def _resampled(entrances: Entrances, num_forced: int, generator: torch.Generator) -> Entrances:
    """`NUM_RESAMPLES` copies side by side, each with shares of its own."""
    skill = entrances.skill.repeat(NUM_RESAMPLES)
    copy = torch.arange(NUM_RESAMPLES).repeat_interleave(len(entrances.skill))
    counts = torch.binomial(torch.full_like(skill, num_forced), skill, generator=generator)
    return replace(
        entrances,
        problem=entrances.problem.repeat(NUM_RESAMPLES) + copy * entrances.num_problems,
        mass=entrances.mass.repeat(NUM_RESAMPLES),
        skill=counts / num_forced,
        num_problems=entrances.num_problems * NUM_RESAMPLES,
    )

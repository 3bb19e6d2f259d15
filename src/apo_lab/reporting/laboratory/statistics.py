"""Comparisons over seeds: at the last step, at matched pass@1, and against the best that any policy could do."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy import stats
from torch import Tensor

from apo_lab.reporting.laboratory.reading import LabRun
from apo_lab.reporting.records import bare
from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.seeds import seed_difference_intervals, seed_mean_intervals
from apo_lightning.evaluation.records import Estimate
from apo_lightning.evaluation.results import estimate_of

MATCHED_WINDOW = 0.05
"""Evaluation points whose pass@1 lies this near to a level enter the fit at it."""


def mean_of(table: Float[Tensor, "seeds problems"]) -> Estimate:
    """Mean with its interval over seeds and problems; of one seed the mean alone."""
    return bare(table.mean().item()) if len(table) < 2 else estimate_of(seed_mean_intervals([table[:, :, None]])[0])


def difference_of(before: Float[Tensor, "seeds problems"], after: Float[Tensor, "others problems"]) -> Estimate:
    """mean(after) − mean(before) with its interval, paired by problem; of one seed each the difference alone."""
    if max(len(before), len(after)) < 2:
        return bare((after.mean() - before.mean()).item())
    return estimate_of(seed_difference_intervals(before[:, :, None], after[:, :, None])[0])


def welch(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """mean(after) − mean(before) with Welch's 95 % interval: numbers of seeds, on these problems.

    Without an interval where an arm has one seed, or neither has any spread.
    """
    value = float(np.mean(after) - np.mean(before))
    if min(len(before), len(after)) < 2 or np.var(before) + np.var(after) == 0:
        return bare(value)
    interval = stats.ttest_ind(after, before, equal_var=False).confidence_interval()
    return Estimate(value=value, low=float(interval.low), high=float(interval.high))


def at_matched(run: LabRun, level: float, metric: str) -> float:
    """A run's metric where its pass@1 passes a level: a line through the evaluation points near it.

    Least squares of the metric on pass@1 over points with |pass@1 − level| ≤ `MATCHED_WINDOW`, read off at the level;
    NaN where the run has no point on one of the two sides of it. The points are exact, so no half of the samples needs
    to be set aside against regression to the mean.
    """
    ones, values = np.array(run.curve("pass@1")), np.array(run.curve(metric))
    near = np.abs(ones - level) <= MATCHED_WINDOW
    if not ones.min() <= level <= ones.max() or near.sum() < 2:
        return math.nan
    if np.ptp(ones[near]) == 0:
        return float(values[near].mean())
    line: Any = stats.linregress(ones[near], values[near])
    return float(line.intercept + line.slope * level)


def matched_difference(before: Sequence[LabRun], after: Sequence[LabRun], level: float, metric: str) -> Estimate | None:
    """`welch` of `at_matched`; None where a seed of either does not reach the level."""
    arms = [[at_matched(run, level, metric) for run in runs] for runs in (before, after)]
    return None if np.isnan(np.concatenate(arms)).any() else welch(*arms)


def frontier(
    has_valid: Bool[Tensor, "problems strategies"],
    group: Int[Tensor, "problems"],
    k: int,
    *,
    num_points: int = 24,
    num_steps: int = 300,
) -> list[tuple[float, float]]:
    """The best pass@k at each pass@1, over policies that choose a strategy by the problem's group and carry it out.

    Maximises (1 − w)·pass@1 + w·pass@k over tables of logits, one row a group, for `num_points` values of w, each by
    `num_steps` of Adam from the one before. The ends are the best pass@1 and the best pass@k. `has_valid`: where a
    strategy opens a problem; `group`: what such a policy sees of a problem. Returns points, pass@1 falling.
    """
    valid = has_valid.double()
    logits = torch.zeros(int(group.max()) + 1, valid.shape[1], dtype=torch.float64, requires_grad=True)
    points = []
    for w in torch.linspace(0, 1, num_points, dtype=torch.float64).tolist():
        optimizer = torch.optim.Adam([logits], lr=0.1)
        for _ in range(num_steps):
            ones, many = _reached(logits, group, valid, k)
            optimizer.zero_grad()
            (-(1 - w) * ones - w * many).backward()
            optimizer.step()
        ones, many = _reached(logits.detach(), group, valid, k)
        points.append((ones.item(), many.item()))
    return points


def _reached(logits: Tensor, group: Tensor, valid: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """pass@1 and pass@k of a table of logits."""
    success = (logits.softmax(1)[group] * valid).sum(1).clamp(max=1 - 1e-12)
    return success.mean(), exact_pass_at_k(success, k).mean()


def frontier_at(points: Sequence[tuple[float, float]], level: float) -> float:
    """The frontier's pass@k at a pass@1, between its points; NaN beyond its ends."""
    return float(np.interp(level, *zip(*sorted(points), strict=True), left=math.nan, right=math.nan))

"""Comparisons over seeds: at the last step, at matched pass@1, and against the best that any policy could do."""

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from scipy.special import stdtrit
from torch import Tensor

from apo_lab.reporting.laboratory.reading import LabRun
from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.seeds import seed_difference_intervals, seed_mean_intervals
from apo_lightning.evaluation.records import Estimate

MATCHED_WINDOW = 0.05
"""Evaluation points whose pass@1 lies this near to a level enter the fit at it."""


def mean_pass_at_k(runs: Sequence[LabRun], k: int) -> Estimate:
    """pass@k at the last step with its interval over seeds and problems; of one seed the mean alone."""
    return mean_of(torch.stack([run.pass_at(k) for run in runs]))


def difference(before: Sequence[LabRun], after: Sequence[LabRun], k: int) -> Estimate:
    """By how much one method's pass@k at the last step exceeds another's, on the same problems."""
    return difference_of(*(torch.stack([run.pass_at(k) for run in runs]) for runs in (before, after)))


def mean_of(table: Float[Tensor, "seeds problems"]) -> Estimate:
    """Mean with its interval over seeds and problems; of one seed the mean alone."""
    if len(table) < 2:
        return bare(table.mean().item())
    (interval,) = seed_mean_intervals([table[:, :, None]])
    return Estimate(value=interval.mean, low=interval.low, high=interval.high)


def difference_of(before: Float[Tensor, "seeds problems"], after: Float[Tensor, "others problems"]) -> Estimate:
    """mean(after) − mean(before) with its interval, paired by problem; of one seed each the difference alone."""
    if max(len(before), len(after)) < 2:
        return bare((after.mean() - before.mean()).item())
    (interval,) = seed_difference_intervals(before[:, :, None], after[:, :, None])
    return Estimate(value=interval.mean, low=interval.low, high=interval.high)


def welch(before: Sequence[float], after: Sequence[float]) -> Estimate:
    """mean(after) − mean(before) with Welch's 95 % interval: numbers of seeds, on these problems.

    Source: Welch 1947; the scope is the problems at hand.

    Example:
        >>> found = welch([1.0, 2.0, 3.0], [2.0, 3.0, 4.0])
        >>> found.value, round(found.low, 2), round(found.high, 2)
        (1.0, -1.27, 3.27)
    """
    arms = [torch.tensor(list(values), dtype=torch.float64) for values in (before, after)]
    value = (arms[1].mean() - arms[0].mean()).item()
    if min(map(len, arms)) < 2:
        return bare(value)
    parts = [arm.var().item() / len(arm) for arm in arms]
    if sum(parts) == 0:
        return bare(value)
    freedom = sum(parts) ** 2 / sum(part**2 / (len(arm) - 1) for part, arm in zip(parts, arms, strict=True))
    half = float(stdtrit(freedom, 0.975)) * math.sqrt(sum(parts))
    return Estimate(value=value, low=value - half, high=value + half)


def at_matched(run: LabRun, level: float, metric: str) -> float:
    """A run's metric where its pass@1 passes a level: a line through the evaluation points near it.

    Least squares of the metric on pass@1 over points with |pass@1 − level| ≤ `MATCHED_WINDOW`, read off at the level;
    NaN where the run has no point on one of the two sides of it. The points are exact, so no half of the samples needs
    to be set aside against regression to the mean.
    """
    ones, values = run.curve("pass@1"), run.curve(metric)
    if not min(ones) <= level <= max(ones):
        return math.nan
    near = [(one, value) for one, value in zip(ones, values, strict=True) if abs(one - level) <= MATCHED_WINDOW]
    if len(near) < 2:
        return math.nan
    x, y = (torch.tensor(column, dtype=torch.float64) for column in zip(*near, strict=True))
    spread = (x - x.mean()).square().sum()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / spread if spread > 0 else torch.tensor(0.0)
    return (y.mean() + slope * (level - x.mean())).item()


def matched_difference(before: Sequence[LabRun], after: Sequence[LabRun], level: float, metric: str) -> Estimate | None:
    """`welch` of `at_matched`; None where a seed of either does not reach the level."""
    arms = [[at_matched(run, level, metric) for run in runs] for runs in (before, after)]
    if any(math.isnan(value) for arm in arms for value in arm):
        return None
    return welch(*arms)


def bare(value: float) -> Estimate:
    """A number without an interval."""
    return Estimate(value=value, low=math.nan, high=math.nan)


def frontier(
    has_valid: Bool[Tensor, "problems strategies"],
    group: Int[Tensor, "problems"],
    k: int,
    *,
    num_points: int = 24,
    num_steps: int = 300,
) -> list[tuple[float, float]]:
    """The best pass@k at each pass@1, over policies that choose a strategy by the problem's group and carry it out.

    Maximises (1 − w)·pass@1 + w·pass@k over tables of logits, one row a group, for a range of w; the ends are the best
    pass@1 and the best pass@k.

    Args:
        has_valid: where a strategy opens a problem.
        group: of each problem: what such a policy sees of it.
        k: of pass@k.
        num_points: values of w.
        num_steps: of Adam, each point starting from the one before.

    Returns:
        Points (pass@1, pass@k), pass@1 falling.
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
    ordered = sorted(points)
    for (x0, y0), (x1, y1) in itertools.pairwise(ordered):
        if x0 <= level <= x1:
            return y0 + (y1 - y0) * (level - x0) / (x1 - x0) if x1 > x0 else max(y0, y1)
    return math.nan

"""Intervals of means over training seeds *and* problems; an interval over only one of the two is too short."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import stdtr, stdtrit
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.metrics.intervals import Interval, mean_intervals

CONFIDENCE = 0.95
MIN_STANDARD_ERROR = 1e-9
"""A smaller standard error is rounding: seeds and problems agree."""
Part = tuple[Float[Tensor, "*columns"], float]
"""An estimated variance of the mean and its degrees of freedom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedEstimate:
    """A mean over seeds and problems, or a difference of two, with its variance."""

    mean: float
    variance: float
    """V of `seed_mean_intervals`."""
    freedom: float
    """Its df."""

    @property
    def standard_error(self) -> float:
        """√V; NaN if nothing varies."""
        found = math.sqrt(self.variance)
        return math.nan if found <= MIN_STANDARD_ERROR else found

    @property
    def p_value(self) -> float:
        """Two-sided, of a mean of 0: P(|t_df| ≥ |mean|/√V); NaN if nothing varies."""
        return 2 * float(stdtr(self.freedom, -abs(self.mean) / self.standard_error))

    def interval(self, confidence: float = CONFIDENCE) -> Interval:
        """mean ± t_{(1 + confidence)/2, df}·√V; the ends are NaN if nothing varies."""
        half = float(stdtrit(self.freedom, (1 + confidence) / 2)) * self.standard_error
        return Interval(mean=self.mean, low=self.mean - half, high=self.mean + half)


def seed_mean_intervals(
    scores: Sequence[Float[Tensor, "seeds _ columns"]], *, lowest: float = 0.0, highest: float = 1.0
) -> list[Interval]:
    """Interval of each column's mean over seeds and problems, for other seeds *and* other problems.

    With y_si the score of seed s on problem i, ȳ_s and ȳ_i its means, and MS the residual mean square of the table,

        V_S = var_s(ȳ_s)/S,   V_P = var_i(ȳ_i)/I,   V_E = MS/(S·I)
        V   = max(V_S + V_P − V_E, V_S, V_P)
        ȳ ± t_{0.975, df}·√V,   df = max(1, (V_S + V_P)²/(V_S²/(S−1) + V_P²/(I−1)))

    Neither end is nearer to ȳ than that of `intervals.mean_intervals` over the problems' means ȳ_i, because t ignores
    unsolved problems that a nearly solved set may contain. V_S + V_P − V_E is unbiased if
    y_si = μ + seed_s + problem_i + residual_si. The ends are clipped to `lowest` and `highest`.

    For several benchmarks b = 1..B it is the interval of the mean over benchmarks: V_S is that of y_s = mean_b ȳ_bs,
    since a seed affects all of them; V_P and V_E are Σ_b V_b/B², each V_P with its own I − 1.

    `benchmarks/accuracy/intervals.py` measures the coverage. With two seeds that differ much more than their problems
    explain, it is about 0.87, since two seeds may be close by chance.

    Source: the crossed random effects of Cornfield and Tukey 1956; V_S + V_P − V_E as in Cameron, Gelbach and Miller
        2011, "Robust inference with multiway clustering"; df of Satterthwaite 1946.
    Departure: V is at least max(V_S, V_P), df is at least 1, and the ends are widened and clipped as above.

    Args:
        scores: one table per benchmark, with the same S ≥ 2 seeds in the same order. For one seed use
            `intervals.mean_intervals`, which is about that checkpoint.
        lowest: lowest possible score of a problem; −inf if unbounded.
        highest: highest possible score; +inf if unbounded.

    Returns:
        One per column, within [lowest, highest].

    Raises:
        ConfigError: fewer than two seeds, different numbers of seeds, or as in `mean_intervals`.

    Example:
        Seeds at 0.2 and 0.6 that agree on all problems: V = V_S = 0.08/2, df = 1, so 0.4 ± 12.7·0.2.

        >>> table = torch.tensor([0.2, 0.6])[:, None, None].expand(2, 10, 1)
        >>> (interval,) = seed_mean_intervals([table], lowest=-3.0, highest=3.0)
        >>> round(interval.mean, 6), round(interval.low, 2), round(interval.high, 2)
        (0.4, -2.14, 2.94)
    """
    tables = [_checked(table) for table in scores]
    if min((len(table) for table in tables), default=0) < 2 or len({len(table) for table in tables}) > 1:
        raise ConfigError(
            f"an interval over {[len(table) for table in tables]} training seeds: it needs two or more, the same "
            "for every benchmark"
        )
    count = len(tables)
    by_seed = torch.stack([table.mean(1) for table in tables]).mean(0)
    of_problems = [variance_of_mean(table.mean(0)) for table in tables]
    over_both = estimates(
        by_seed.mean(0),
        seeds=[variance_of_mean(by_seed)],
        problems=[(variance / count**2, freedom) for variance, freedom in of_problems],
        both=torch.stack([residual_variance(table) for table in tables]).sum(0) / count**2,
    )
    alone = [mean_intervals(t.mean(0), lowest=lowest, highest=highest) for t in tables]
    over_problems = [mean_of_intervals(intervals) for intervals in zip(*alone, strict=True)]
    return [
        Interval(
            mean=both.mean,
            # `fmin` and `fmax` ignore the NaN of V = 0.
            low=max(lowest, float(np.fmin(both.low, problems.low))),
            high=min(highest, float(np.fmax(both.high, problems.high))),
        )
        for both, problems in zip((each.interval() for each in over_both), over_problems, strict=True)
    ]


def seed_difference_test(
    before: Sequence[Float[Tensor, "seeds_a _"]], after: Sequence[Float[Tensor, "seeds_b _"]]
) -> SeedEstimate:
    """Test the mean over benchmarks of method B minus method A, paired by problem.

    With d_i = ȳ_B,i − ȳ_A,i on problem i of a benchmark, and the variances of `seed_mean_intervals`,

        V_P = Σ_b var_i(d_i)/I_b/B²,   V_E = Σ_b Σ_m MS_m/(S_m·I_b)/B²
        V   = max(V_A + V_B + V_P − V_E, V_A + V_B, V_P)
        Δ ± t_{0.975, df}·√V,   p = P(|t_df| ≥ |Δ|/√V)

    with the df of Satterthwaite. V_A and V_B are those of the seeds' means over benchmarks, since a seed affects all of
    them. A method with one seed adds none: with one seed each the test is about these two checkpoints.

    Source, departure: as `seed_mean_intervals`; without the clipping and the widening.

    Args:
        before: one table of scores per benchmark, with the same seeds in the same order.
        after: of B, on the same benchmarks with the same problems.

    Returns:
        Δ; its p-value is NaN if seeds and problems all agree, or a benchmark has one problem.

    Raises:
        ConfigError: problems differ in number, or a score is not finite.

    Example:
        Four problems, differences 0.5, 0, 0.25 and 0.25: t = 0.25/(0.204/2) = 2.45, 3 degrees of freedom.

        >>> a, b = torch.tensor([[0.0, 0.5, 0.5, 0.5]]), torch.tensor([[0.5, 0.5, 0.75, 0.75]])
        >>> test = seed_difference_test([a], [b])
        >>> round(test.mean, 3), round(test.p_value, 3)
        (0.25, 0.092)
    """
    tables = [[_checked(table) for table in method] for method in (before, after)]
    if any(a.shape[1] != b.shape[1] for a, b in zip(*tables, strict=True)):
        raise ConfigError("a paired test needs the same problems before and after")
    count = len(tables[0])
    means = [torch.stack([table.mean(1) for table in method]).mean(0) for method in tables]
    differences = [b.mean(0) - a.mean(0) for a, b in zip(*tables, strict=True)]
    residuals = [residual_variance(table) for method in tables for table in method if len(table) > 1]
    (found,) = estimates(
        means[1].mean(0) - means[0].mean(0),
        seeds=[variance_of_mean(each) for each in means if len(each) > 1],
        problems=[(v / count**2, df) for v, df in (variance_of_mean(each) for each in differences)],
        both=torch.stack([torch.zeros((), dtype=torch.float64), *residuals]).sum(0) / count**2,
    )
    return found


def _checked(table: Float[Tensor, "seeds problems *columns"]) -> Tensor:
    table = table.detach().double().cpu()
    if table.numel() == 0 or not bool(table.isfinite().all()):
        raise ConfigError("an interval over seeds and problems needs a finite score of every seed on every problem")
    return table


def residual_variance(table: Float[Tensor, "seeds problems *columns"]) -> Float[Tensor, "*columns"]:
    """V_E of `seed_mean_intervals`: the variances by seed and by problem both contain it, so their sum has it twice."""
    num_seeds, num_problems = table.shape[:2]
    residual = table - table.mean(1)[:, None] - table.mean(0)[None] + table.mean((0, 1))
    mean_square = residual.square().sum((0, 1)) / max(1, (num_seeds - 1) * (num_problems - 1))
    return mean_square / (num_seeds * num_problems)


def variance_of_mean(values: Float[Tensor, "units *columns"]) -> Part:
    """The variance of a mean of independent units and its df; NaN for a single unit."""
    count = len(values)
    variance = values.var(0) / count if count > 1 else torch.full_like(values[0], math.nan)
    return variance, float(max(1, count - 1))


def estimates(
    mean: Float[Tensor, "*columns"], *, seeds: Sequence[Part], problems: Sequence[Part], both: Float[Tensor, "*columns"]
) -> list[SeedEstimate]:
    """The mean of each column with its V and df, as in `seed_mean_intervals`.

    Args:
        mean: over seeds and problems.
        seeds: V_S of each method that the mean or difference contains; none: V is that of the problems.
        problems: V_P of each benchmark.
        both: V_E.
    """
    zero = (torch.zeros_like(both), 1.0)
    by_seed, by_problem = (torch.stack([v for v, _ in parts]).sum(0) for parts in (seeds or [zero], problems))
    variance = torch.maximum(by_seed + by_problem - both, torch.maximum(by_seed, by_problem))
    spread = torch.stack([v**2 / df for v, df in (*seeds, *problems)]).sum(0)
    freedom = ((by_seed + by_problem) ** 2 / spread).clamp(min=1)
    columns = zip(*(each.flatten().tolist() for each in (mean, variance, freedom)), strict=True)
    return [SeedEstimate(mean=m, variance=v, freedom=df) for m, v, df in columns]


def mean_of_intervals(intervals: Sequence[Interval]) -> Interval:
    """Mean of estimates that share no problem and no seed: distances of the ends add in quadrature, √(Σ_b h_b²)/B.

    Ends 0.3 and 0.4 away from their values: √(0.3² + 0.4²)/2 = 0.25.
    """
    count = len(intervals)
    mean = math.fsum(i.mean for i in intervals) / count
    below, above = math.hypot(*(i.mean - i.low for i in intervals)), math.hypot(*(i.high - i.mean for i in intervals))
    return Interval(mean=mean, low=mean - below / count, high=mean + above / count)

"""How often do 95 % intervals of a mean over problems hold the truth? Prints a Markdown table; one to two minutes.

    python benchmarks/intervals.py

Problems are drawn from populations like those of real benchmarks: a share is never solved, a share always, the rest
have solve rates from a Beta distribution. n samples are drawn of each, scored by pass@k, and averaged; the truth is the
mean of pass@k over the population. "paired" is the difference of two policies on the same problems. Coverage is the
share of 1000 sets whose interval holds the truth: the lowest and the highest over populations of mean 0.1, 0.3 … 0.9.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.intervals import Interval, mean_intervals, paired_intervals

NUM_PROBLEMS = (30, 40, 272, 500)
SAMPLES_AND_K = ((1, 1), (16, 1), (256, 16))
MEANS = (0.1, 0.3, 0.5, 0.7, 0.9)
SATURATED = 0.98
PAIRED_MEANS = (0.3, 0.7)
NUM_SETS = 1000
NUM_PERCENTILE_RESAMPLES = 2000


@dataclass(frozen=True, kw_only=True)
class Population:
    """Of problems, by their solve rates."""

    share_never: float
    share_always: float
    mean_rate: float
    """Of the others: Beta(2·mean_rate, 2·(1 − mean_rate))."""

    def mean_pass_at_k(self, k: int) -> float:
        """E[1 − (1 − p)^k], by the moments of the Beta distribution: E[(1 − p)^k] = Π_{j<k} (b + j)/(a + b + j)."""
        drawn = np.arange(k)
        misses = np.prod((2 * (1 - self.mean_rate) + drawn) / (2 + drawn))
        return self.share_always + (1 - self.share_never - self.share_always) * (1 - misses)

    def solve_rates(self, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        kind = rng.random(shape)
        rates = rng.beta(2 * self.mean_rate, 2 * (1 - self.mean_rate), shape)
        rates[kind < self.share_never + self.share_always] = 1.0
        rates[kind < self.share_never] = 0.0
        return rates


def population(mean: float, k: int) -> Population:
    """The population whose mean pass@k is `mean`; of a saturated one, no problem is hopeless."""
    share_never = 0.4 * (1 - mean) if mean < SATURATED else 0.0
    low, high = 1e-9, 1 - 1e-9
    for _ in range(60):
        middle = (low + high) / 2
        found = Population(share_never=share_never, share_always=0.3 * mean, mean_rate=middle)
        low, high = (middle, high) if found.mean_pass_at_k(k) < mean else (low, middle)
    return found


def scores(rates: np.ndarray, num_samples: int, k: int, rng: np.random.Generator) -> torch.Tensor:
    """pass@k of every problem [problems, sets], estimated from n samples."""
    correct = torch.from_numpy(rng.binomial(num_samples, rates))
    return pass_at_k(torch.full_like(correct, num_samples), correct, k)


def percentile_intervals(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each column: the plain bootstrap."""
    chosen = torch.randint(
        len(values), (NUM_PERCENTILE_RESAMPLES, len(values)), generator=torch.Generator().manual_seed(0)
    )
    counts = torch.zeros(NUM_PERCENTILE_RESAMPLES, len(values), dtype=torch.float64)
    counts.scatter_add_(1, chosen, torch.ones_like(chosen, dtype=torch.float64))
    means = (counts @ values / len(values)).sort(dim=0).values
    rank = round(0.025 * NUM_PERCENTILE_RESAMPLES)
    return means[rank - 1], means[-rank]


def ends(intervals: list[Interval]) -> tuple[torch.Tensor, torch.Tensor]:
    low_and_high = [(interval.low, interval.high) for interval in intervals]
    return torch.tensor(low_and_high, dtype=torch.float64).unbind(1)


@dataclass(frozen=True, kw_only=True)
class Measurement:
    coverage: float
    """Share of sets whose interval holds the truth."""
    width: float
    """Mean."""


def measure(low: torch.Tensor, high: torch.Tensor, truth: float) -> Measurement:
    # A score of exactly 1 is off by a rounding error after resampling.
    holds = (low - 1e-12 <= truth) & (truth <= high + 1e-12)
    return Measurement(coverage=holds.double().mean().item(), width=(high - low).mean().item())


def means(
    num_problems: int, num_samples: int, k: int, mean: float, num_sets: int = NUM_SETS
) -> tuple[Measurement, Measurement]:
    """(percentile bootstrap, ours) for many sets of problems."""
    rng = np.random.default_rng(0)
    source = population(mean, k)
    values = scores(source.solve_rates((num_problems, num_sets), rng), num_samples, k, rng)
    truth = source.mean_pass_at_k(k)
    return measure(*percentile_intervals(values), truth), measure(*ends(mean_intervals(values)), truth)


def differences(
    num_problems: int, num_samples: int, k: int, mean: float, num_sets: int = NUM_SETS
) -> tuple[Measurement, Measurement]:
    """As `means`, for a second policy whose solve rates are better by 0.5 ± 0.5 in log-odds."""
    rng = np.random.default_rng(0)
    source = population(mean, k)

    def both(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
        rates = source.solve_rates(shape, rng)
        odds = rates / np.maximum(1 - rates, 1e-9) * np.exp(0.5 + 0.5 * rng.standard_normal(shape))
        return rates, odds / (1 + odds)

    before, after = both((1000, 1000))
    truth = float(((1 - before) ** k - (1 - after) ** k).mean())
    first, second = (scores(rates, num_samples, k, rng) for rates in both((num_problems, num_sets)))
    percentile, ours = percentile_intervals(second - first), ends(paired_intervals(first, second))
    return measure(*percentile, truth), measure(*ours, truth)


def row(cells: list[tuple[Measurement, Measurement]]) -> list[str]:
    """The lowest and the highest coverage, and the mean width, of both methods."""
    by_method = list(zip(*cells, strict=True))
    coverages = [sorted(cell.coverage for cell in method) for method in by_method]
    widths = [sum(cell.width for cell in method) / len(method) for method in by_method]
    return [*(f"{found[0]:.3f}–{found[-1]:.3f}" for found in coverages), *(f"{width:.3f}" for width in widths)]


def rows() -> Iterator[list[str]]:
    for num_problems in NUM_PROBLEMS:
        for num_samples, k in SAMPLES_AND_K:
            cells = [means(num_problems, num_samples, k, mean) for mean in MEANS]
            saturated = means(num_problems, num_samples, k, SATURATED)
            name = f"pass@{k} of {num_samples}"
            yield [str(num_problems), name, *row(cells), *(f"{method.coverage:.3f}" for method in saturated)]
    for num_problems in NUM_PROBLEMS:
        for num_samples, k in SAMPLES_AND_K:
            cells = [differences(num_problems, num_samples, k, mean) for mean in PAIRED_MEANS]
            yield [str(num_problems), f"paired pass@{k} of {num_samples}", *row(cells), "", ""]


HEADER = [
    "problems",
    "score",
    "coverage, percentile",
    "coverage, ours",
    "width, percentile",
    "width, ours",
    "coverage at mean 0.98, percentile",
    "ours",
]

if __name__ == "__main__":
    print(f"| {' | '.join(HEADER)} |")
    print("|--:|:--|--:|--:|--:|--:|--:|--:|")
    for cells in rows():
        print(f"| {' | '.join(cells)} |", flush=True)

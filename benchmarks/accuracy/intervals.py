"""How often do 95 % intervals of a mean over problems hold the truth? Prints two Markdown tables; some five minutes.

    python -m benchmarks.accuracy.intervals

Problems are drawn from populations like those of real benchmarks: a share is never solved, a share always, the rest
have solve rates from a Beta distribution. n samples are drawn of each, scored by pass@k, and averaged; the truth is the
mean of pass@k over the population. "paired" is the difference of two policies on the same problems. Coverage is the
share of 1000 sets whose interval holds the truth: the lowest and the highest over populations of mean 0.1, 0.3 … 0.9.

The second table is of means over training seeds and problems. Solve rates are logistic in a normal difficulty (sd 2), a
normal effect of the seed, and one of the seed on the problem (sd 0.5); 64 samples a problem; the truth is the mean over
all seeds and problems there could be.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.metrics.intervals import Interval, mean_intervals, paired_intervals
from apo_report.statistics.seeds import seed_difference_test, seed_mean_intervals

NUM_PROBLEMS = (30, 40, 272, 500)
SAMPLES_AND_K = ((1, 1), (16, 1), (256, 16))
MEANS = (0.1, 0.3, 0.5, 0.7, 0.9)
SATURATED = 0.98
PAIRED_MEANS = (0.3, 0.7)
NUM_SETS = 1000
NUM_PERCENTILE_RESAMPLES = 2000

NUM_SEEDS = (2, 3, 5)
NUM_PROBLEMS_OF_SEEDS = (30, 500)
SEED_SDS = (0.05, 0.15, 0.4)
"""Of a seed's effect [log-odds]; half a point, one and a half, and four or five of pass@1."""
DIFFICULTY_SD, INTERACTION_SD, GAIN_SD = 2.0, 0.5, 0.3
EASE_AND_K = ((-2.5, 1), (-2.5, 16), (0.0, 1), (0.0, 16))
"""Mean log-odds and k: pass@k of about 0.18, 0.62, 0.50 and 0.92."""
SATURATED_EASE_AND_K = (4.0, 16)
"""pass@k of 0.999."""
NUM_SAMPLES_OF_SEEDS = 64


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
        return self.share_always + (1 - self.share_never - self.share_always) * (1 - float(misses))

    def solve_rates(self, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
        kind = rng.random(shape)
        rates = rng.beta(2 * self.mean_rate, 2 * (1 - self.mean_rate), shape)
        rates[kind < self.share_never + self.share_always] = 1.0
        rates[kind < self.share_never] = 0.0
        return rates


def population(mean: float, k: int) -> Population:
    """The population whose mean pass@k is `mean`; of a saturated one, no problem is hopeless."""
    share_never = 0.4 * (1 - mean) if mean < SATURATED else 0.0
    found = Population(share_never=share_never, share_always=0.3 * mean, mean_rate=0.5)
    low, high = 1e-9, 1 - 1e-9
    for _ in range(60):
        low, high = (found.mean_rate, high) if found.mean_pass_at_k(k) < mean else (low, found.mean_rate)
        found = replace(found, mean_rate=(low + high) / 2)
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
    low, high = zip(*((interval.low, interval.high) for interval in intervals), strict=True)
    return torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)


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


@dataclass(frozen=True, kw_only=True)
class Policies:
    """Training seeds of one method, by the log-odds of their solve rates."""

    ease: float
    seed_sd: float
    gain_sd: float = 0.0
    """Of what the method adds to a problem, the same for all its seeds."""

    def mean_pass_at_k(self, k: int) -> float:
        """Over all problems and seeds: the log-odds are normal, so this is one integral (Gauss and Hermite)."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(200)
        spread = np.sqrt(DIFFICULTY_SD**2 + self.seed_sd**2 + INTERACTION_SD**2 + self.gain_sd**2)
        rates = 1 / (1 + np.exp(-(self.ease + spread * nodes)))
        return float(((1 - (1 - rates) ** k) * weights).sum() / weights.sum())

    def scores(self, difficulty: np.ndarray, num_seeds: int, k: int, rng: np.random.Generator) -> torch.Tensor:
        """pass@k [seeds, problems, sets]."""
        num_problems, num_sets = difficulty.shape
        of_seeds = self.seed_sd * rng.standard_normal((num_seeds, 1, num_sets))
        of_both = INTERACTION_SD * rng.standard_normal((num_seeds, num_problems, num_sets))
        gain = self.gain_sd * rng.standard_normal(difficulty.shape)
        rates = 1 / (1 + np.exp(-(self.ease + difficulty + gain + of_seeds + of_both)))
        return scores(rates, NUM_SAMPLES_OF_SEEDS, k, rng)


def seed_means(
    num_seeds: int, num_problems: int, ease: float, k: int, seed_sd: float, num_sets: int = NUM_SETS
) -> tuple[Measurement, Measurement]:
    """(seeds' means resampled over problems alone, seeds × problems) for many sets of seeds and problems."""
    rng = np.random.default_rng(0)
    policies = Policies(ease=ease, seed_sd=seed_sd)
    values = policies.scores(DIFFICULTY_SD * rng.standard_normal((num_problems, num_sets)), num_seeds, k, rng)
    truth = policies.mean_pass_at_k(k)
    over_problems, ours = mean_intervals(values.mean(0)), seed_mean_intervals([values])
    return measure(*ends(over_problems), truth), measure(*ends(ours), truth)


def seed_differences(
    num_seeds: int, num_problems: int, ease: float, k: int, seed_sd: float, num_sets: int = NUM_SETS
) -> tuple[Measurement, Measurement]:
    """As `seed_means`, for the difference to a second method that is better by 0.3 ± 0.3 in log-odds."""
    rng = np.random.default_rng(0)
    first, second = Policies(ease=ease, seed_sd=seed_sd), Policies(ease=ease + 0.3, seed_sd=seed_sd, gain_sd=GAIN_SD)
    difficulty = DIFFICULTY_SD * rng.standard_normal((num_problems, num_sets))
    before, after = (policies.scores(difficulty, num_seeds, k, rng) for policies in (first, second))
    truth = second.mean_pass_at_k(k) - first.mean_pass_at_k(k)
    over_problems = paired_intervals(before.mean(0), after.mean(0))
    columns = zip(before.unbind(2), after.unbind(2), strict=True)
    low, high = ends([seed_difference_test([a], [b]).interval() for a, b in columns])
    return measure(*ends(over_problems), truth), measure(low.clamp(min=-1), high.clamp(max=1), truth)


def seed_rows() -> Iterator[list[str]]:
    for simulate, name in ((seed_means, "mean"), (seed_differences, "difference")):
        for num_seeds in NUM_SEEDS:
            for num_problems in NUM_PROBLEMS_OF_SEEDS:
                for seed_sd in SEED_SDS:
                    size = num_seeds, num_problems
                    cells = [simulate(*size, ease, k, seed_sd) for ease, k in EASE_AND_K]
                    saturated = [f"{m.coverage:.3f}" for m in simulate(*size, *SATURATED_EASE_AND_K, seed_sd)]
                    what = [name, *map(str, size), f"{seed_sd}"]
                    yield [*what, *row(cells), *(saturated if name == "mean" else ["", ""])]


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
SEED_HEADER = [
    "of",
    "seeds",
    "problems",
    "sd of seeds [log-odds]",
    "coverage, over problems alone",
    "coverage, ours",
    "width, over problems alone",
    "width, ours",
    "coverage at mean 0.999, over problems alone",
    "ours",
]


def show(header: list[str], lines: Iterator[list[str]]) -> None:
    print(f"| {' | '.join(header)} |")
    print(f"|{'--:|' * len(header)}")
    for line in lines:
        print(f"| {' | '.join(line)} |", flush=True)
    print()


if __name__ == "__main__":
    show(HEADER, rows())
    show(SEED_HEADER, seed_rows())

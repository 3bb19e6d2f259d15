"""Intervals over training seeds and problems: by formulas written out in numpy, and how often they hold the truth."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats

from apo_lightning.errors import ConfigError
from apo_lightning.metrics.intervals import mean_intervals
from apo_report.statistics.seeds import seed_difference_test, seed_mean_intervals

BENCHMARK = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "accuracy" / "intervals.py"))
FREE = {"lowest": -math.inf, "highest": math.inf}


def table(*shape, seed=0, of_seeds=1.0, of_problems=1.0, of_both=1.0):
    """Normal scores: an effect of the seed, one of the problem, and what is left."""
    rng = np.random.default_rng(seed)
    num_seeds, num_problems = shape
    parts = rng.normal(0, of_seeds, (num_seeds, 1)), rng.normal(0, of_problems, (1, num_problems))
    return sum(parts) + rng.normal(0, of_both, shape)


def as_tensor(scores):
    return torch.from_numpy(np.asarray(scores, dtype=float))[:, :, None]


def variances(scores):
    """(V_S, V_P, V_E) by loops over the table."""
    num_seeds, num_problems = scores.shape
    by_seed = [np.mean(row) for row in scores]
    by_problem = [np.mean(column) for column in scores.T]
    residual = [
        (scores[s, i] - by_seed[s] - by_problem[i] + np.mean(scores)) ** 2
        for s in range(num_seeds)
        for i in range(num_problems)
    ]
    mean_square = sum(residual) / ((num_seeds - 1) * (num_problems - 1))
    return (
        np.var(by_seed, ddof=1) / num_seeds,
        np.var(by_problem, ddof=1) / num_problems,
        mean_square / (num_seeds * num_problems),
    )


def half_width(seeds, problems, both):
    """Of (variance, degrees of freedom) of seeds and of problems, and V_E."""
    sums = sum(v for v, _ in seeds), sum(v for v, _ in problems)
    variance = max(sum(sums) - both, *sums)
    freedom = sum(sums) ** 2 / sum(v**2 / df for v, df in (*seeds, *problems))
    return stats.t.ppf(0.975, max(1.0, freedom)) * math.sqrt(variance)


@pytest.mark.parametrize(("num_seeds", "num_problems"), [(2, 30), (3, 7), (5, 40)])
def test_the_mean_has_the_interval_of_the_formula(num_seeds, num_problems):
    scores = table(num_seeds, num_problems)
    v_s, v_p, v_e = variances(scores)
    half = half_width([(v_s, num_seeds - 1)], [(v_p, num_problems - 1)], v_e)
    (alone,) = mean_intervals(as_tensor(scores).mean(0), **FREE)
    (interval,) = seed_mean_intervals([as_tensor(scores)], **FREE)
    ends = min(scores.mean() - half, alone.low), max(scores.mean() + half, alone.high)
    assert (interval.mean, interval.low, interval.high) == pytest.approx((scores.mean(), *ends), rel=1e-9)


def test_of_several_benchmarks_a_seed_counts_on_all_at_once():
    """The two benchmarks share their seeds' effects, which quadrature would halve."""
    lucky = np.array([[-1.0], [0.0], [1.0]])
    first, second = (lucky + 0.1 * table(3, 20, seed=seed, of_seeds=0) for seed in (1, 2))
    found = [variances(scores) for scores in (first, second)]
    by_seed = (first.mean(1) + second.mean(1)) / 2
    seeds = [(by_seed.var(ddof=1) / 3, 2)]
    half = half_width(seeds, [(v_p / 4, 19) for _, v_p, _ in found], sum(v_e for *_, v_e in found) / 4)
    (interval,) = seed_mean_intervals([as_tensor(first), as_tensor(second)], **FREE)
    assert interval.high - interval.mean == pytest.approx(half, rel=1e-9)
    (one,) = seed_mean_intervals([as_tensor(first)], **FREE)
    assert interval.high - interval.low > 0.95 * (one.high - one.low)


@pytest.mark.parametrize(("seeds_a", "seeds_b"), [(3, 3), (2, 5), (1, 3), (4, 1)])
def test_the_difference_has_the_interval_of_the_formula(seeds_a, seeds_b):
    """Part 3's; an arm with one seed has no variance of its own."""
    first, second = 0.02 * table(seeds_a, 25, seed=1) + 0.4, 0.02 * table(seeds_b, 25, seed=2) + 0.5
    arms = [scores for scores in (first, second) if len(scores) > 1]
    seeds = [(variances(scores)[0], len(scores) - 1) for scores in arms]
    difference = second.mean(0) - first.mean(0)
    half = half_width(seeds, [(difference.var(ddof=1) / 25, 24)], sum(variances(scores)[2] for scores in arms))
    interval = seed_difference_test([torch.from_numpy(first)], [torch.from_numpy(second)]).interval()
    assert interval.mean == pytest.approx(difference.mean())
    assert (interval.high - interval.mean, interval.mean - interval.low) == pytest.approx((half, half), rel=1e-9)


def test_no_mean_is_surer_over_seeds_and_problems_than_over_problems():
    """29 of 30 problems solved by both seeds: t knows nothing of the problem that neither has met."""
    scores = torch.ones(2, 30, 1, dtype=torch.float64)
    scores[:, 0] = 0
    (alone,), (both,) = mean_intervals(scores.mean(0)), seed_mean_intervals([scores])
    assert both.low <= alone.low
    assert both.high >= alone.high
    (solved,) = seed_mean_intervals([torch.ones(2, 30, 1)])
    assert solved.low < 0.95


def test_methods_of_which_nothing_differs_have_no_interval():
    interval = seed_difference_test([torch.full((2, 9), 0.3)], [torch.full((3, 9), 0.4)]).interval()
    assert (interval.mean, math.isnan(interval.low), math.isnan(interval.high)) == (pytest.approx(0.1), True, True)


def test_a_column_has_the_interval_it_would_have_alone():
    scores = torch.from_numpy(np.stack([table(3, 12, seed=seed) for seed in range(4)], axis=2))
    together = seed_mean_intervals([scores], **FREE)
    alone = [seed_mean_intervals([scores[:, :, [column]]], **FREE)[0] for column in range(4)]
    ends = [[(i.mean, i.low, i.high) for i in intervals] for intervals in (together, alone)]
    assert np.allclose(ends[0], ends[1], rtol=1e-9)


@pytest.mark.parametrize(("num_seeds", "num_problems"), [(3, 30), (5, 30)])
def test_ninety_five_per_cent_hold_the_truth_where_problems_alone_do_not_suffice(num_seeds, num_problems):
    over_problems, ours = BENCHMARK["seed_differences"](num_seeds, num_problems, 0.0, 1, 0.4, 200)
    assert over_problems.coverage < 0.7
    # 0.95 ± 4 standard errors of 200 draws.
    assert 0.89 <= ours.coverage <= 1
    _, mean = BENCHMARK["seed_means"](num_seeds, num_problems, 0.0, 1, 0.4, 200)
    assert 0.89 <= mean.coverage <= 1


ONE, TWO = torch.zeros(1, 4, 1), torch.zeros(2, 4, 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: seed_mean_intervals([ONE]), r"over \[1\] training seeds"),
        (lambda: seed_mean_intervals([TWO, torch.zeros(3, 4, 1)]), r"over \[2, 3\] training seeds"),
        (lambda: seed_mean_intervals([TWO + math.nan]), "finite score"),
        (lambda: seed_difference_test([torch.zeros(1, 3)], [torch.zeros(1, 4)]), "same problems"),
    ],
)
def test_what_has_no_interval_over_seeds_is_refused(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def test_the_test_over_benchmarks_is_that_of_the_formulas():
    befores, afters = ([table(size, n, seed=n + size) for n in (5, 9)] for size in (2, 3))
    seeds = [
        [np.mean([bench[s].mean() for bench in method]) for s in range(len(method[0]))] for method in (befores, afters)
    ]
    by_seed = [np.var(each, ddof=1) / len(each) for each in seeds]
    differences = [after.mean(0) - before.mean(0) for before, after in zip(befores, afters, strict=True)]
    by_problem = [np.var(d, ddof=1) / len(d) / 4 for d in differences]
    both = sum(variances(bench)[2] for method in (befores, afters) for bench in method) / 4
    total = max(sum(by_seed) + sum(by_problem) - both, sum(by_seed), sum(by_problem))
    spread = by_seed[0] ** 2 / 1 + by_seed[1] ** 2 / 2 + by_problem[0] ** 2 / 4 + by_problem[1] ** 2 / 8
    freedom = max(1, (sum(by_seed) + sum(by_problem)) ** 2 / spread)
    mean = np.mean([d.mean() for d in differences])
    test = seed_difference_test(*([torch.from_numpy(bench) for bench in method] for method in (befores, afters)))
    assert test.mean == pytest.approx(mean)
    assert test.p_value == pytest.approx(2 * stats.t.sf(abs(mean) / math.sqrt(total), freedom))


def test_two_checkpoints_are_tested_by_the_paired_t_test_and_none_without_spread():
    before, after = table(1, 12, seed=3), table(1, 12, seed=4)
    tested = seed_difference_test([torch.from_numpy(before)], [torch.from_numpy(after)])
    assert tested.p_value == pytest.approx(stats.ttest_rel(after[0], before[0]).pvalue)
    same = seed_difference_test([torch.zeros(1, 3)], [torch.ones(1, 3)])
    assert math.isnan(same.p_value)

"""Contrasts and verdicts: by formulas written out in numpy, by hand, and the rate of false ones."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from apo_lab.statistics.verdicts import ArmScores, Outcome, compare, decide, mean_interval, pseudo_values
from apo_lightning.errors import ConfigError
from apo_lightning.metrics.intervals import Interval
from apo_report.statistics.seeds import seed_difference_test, seed_mean_intervals

BENCHMARK = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "accuracy" / "verdicts.py"))


def table(num_seeds, seed, shift=0.0, num_blocks=16, of_seeds=0.2):
    rng = np.random.default_rng(seed)
    parts = of_seeds * rng.standard_normal((num_seeds, 1)), 0.5 * rng.standard_normal((num_seeds, num_blocks))
    return torch.from_numpy(shift + sum(parts))


def arm(*tables, name="arm"):
    return ArmScores(name=name, tables={f"world {n}": found for n, found in enumerate(tables)})


def logit(p):
    return math.log(p / (1 - p))


def expit(x):
    return 1 / (1 + math.exp(-x))


def test_pseudo_values_are_those_of_tukey_about_the_logit_of_the_whole():
    value, without = 0.8, [0.7, 0.9, 0.85]
    tukey = [3 * logit(value) - 2 * logit(part) for part in without]
    expected = [z - sum(tukey) / 3 + logit(value) for z in tukey]
    found = pseudo_values(torch.tensor(value, dtype=torch.float64), torch.tensor(without, dtype=torch.float64))
    assert found.tolist() == pytest.approx(expected)


def test_pseudo_values_at_0_and_1_are_those_of_epsilon():
    # logit(1e-4) = −log 9999; with all θ_(−b) equal, z_b = logit(θ).
    found = pseudo_values(torch.tensor([0.0, 1.0, 1e-9]), torch.tensor([[0.0, 0.0], [1.0, 1.0], [1e-9, 0.0]]))
    end = math.log(9999)
    expected = torch.tensor([[-end, -end], [end, end], [-end, -end]], dtype=torch.float64)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


def test_an_endpoint_outside_of_0_to_1_is_refused():
    for value in (math.nan, 1.01, -0.01):
        with pytest.raises(ConfigError, match=r"not in \[0, 1\]"):
            pseudo_values(torch.tensor(0.5), torch.tensor([0.5, value]))


@pytest.mark.parametrize(("seeds_a", "seeds_b"), [(3, 3), (2, 5), (10, 10)])
def test_in_one_world_the_contrast_is_that_of_seeds_and_problems(seeds_a, seeds_b):
    first, second = 0.02 * table(seeds_a, 0), 0.02 * table(seeds_b, 1)
    expected = seed_difference_test([first], [second]).interval()
    found = compare(arm(first), arm(second))
    interval = found.logit_difference
    assert (interval.mean, interval.low, interval.high) == pytest.approx((expected.mean, expected.low, expected.high))
    # The p-value is that of the t whose 95 % interval this is.
    assert interval.high - interval.mean == pytest.approx(stats.t.ppf(0.975, found.freedom) * found.standard_error)
    expected_p = 2 * stats.t.sf(abs(interval.mean) / found.standard_error, found.freedom)
    assert found.p_value == pytest.approx(expected_p)
    assert found.min_seeds == min(seeds_a, seeds_b)


def variance_and_freedom(first, second):
    """V and df of one world, with loops in numpy."""
    first, second = first.numpy(), second.numpy()
    seeds, residual = [], 0.0
    for scores in (first, second):
        num_seeds, num_blocks = scores.shape
        seeds.append((np.var(scores.mean(1), ddof=1) / num_seeds, num_seeds - 1))
        squares = [
            (scores[s, b] - scores[s].mean() - scores[:, b].mean() + scores.mean()) ** 2
            for s in range(num_seeds)
            for b in range(num_blocks)
        ]
        residual += sum(squares) / ((num_seeds - 1) * (num_blocks - 1)) / (num_seeds * num_blocks)
    blocks = np.var(second.mean(0) - first.mean(0), ddof=1) / 16
    v_s = sum(v for v, _ in seeds)
    spread = sum(v**2 / df for v, df in [*seeds, (blocks, 15)])
    return max(v_s + blocks - residual, v_s, blocks), max(1, (v_s + blocks) ** 2 / spread)


@pytest.mark.parametrize(("shifts", "is_between"), [((0.0, 3.0, -2.0), True), ((0.1, 0.1, 0.1), False)])
def test_over_worlds_the_larger_of_two_variances_counts(shifts, is_between):
    before = [table(3, seed, of_seeds=1.0) for seed in range(3)]
    # With the same noise in all worlds, the differences vary by their shifts alone.
    noise = table(3, 9, of_seeds=1.0)
    after = [first + shift + 0.1 * noise for first, shift in zip(before, shifts, strict=True)]
    found = compare(arm(*before), arm(*after))
    parts = [variance_and_freedom(a, b) for a, b in zip(before, after, strict=True)]
    differences = [(b.mean() - a.mean()).item() for a, b in zip(before, after, strict=True)]
    within = sum(v for v, _ in parts) / 9
    if is_between:
        expected = math.sqrt(np.var(differences, ddof=1) / 3), 2
        assert expected[0] > math.sqrt(within)
    else:
        expected = math.sqrt(within), sum(v for v, _ in parts) ** 2 / sum(v**2 / df for v, df in parts)
    assert (found.standard_error, found.freedom) == pytest.approx(expected)
    assert found.logit_difference.mean == pytest.approx(np.mean(differences))


def test_the_difference_in_points_is_that_of_the_two_means():
    found = compare(arm(table(3, 0, shift=logit(0.8))), arm(table(3, 1, shift=logit(0.9))))
    means = [expit(table(3, seed, shift=logit(p)).mean().item()) for seed, p in ((0, 0.8), (1, 0.9))]
    assert found.reference == pytest.approx(means[0])
    assert found.difference.mean == pytest.approx(means[1] - means[0])
    low = logit(means[0]) + found.logit_difference.low
    assert found.difference.low == pytest.approx(expit(low) - means[0])


@given(st.integers(0, 50), st.floats(-6, 6), st.integers(1, 3))
def test_swapping_the_arms_flips_the_sign_and_intervals_are_possible(seed, shift, num_worlds):
    before = arm(*(table(3, seed + n) for n in range(num_worlds)), name="a")
    after = arm(*(table(4, 99 + seed + n, shift) for n in range(num_worlds)), name="b")
    there, back = compare(before, after), compare(after, before)
    assert back.logit_difference.mean == pytest.approx(-there.logit_difference.mean)
    assert back.logit_difference.low == pytest.approx(-there.logit_difference.high)
    assert back.difference.mean == pytest.approx(-there.difference.mean)
    assert -1 < there.difference.low < there.difference.mean < there.difference.high < 1
    assert 0 < (alone := mean_interval(after)).low < alone.mean < alone.high < 1
    assert (back.p_value, back.freedom) == pytest.approx((there.p_value, there.freedom))


def test_the_mean_of_one_arm_has_the_crossed_interval_on_the_logit_scale():
    scores = table(3, 4, shift=1.0, of_seeds=2.0)
    (expected,) = seed_mean_intervals([scores[:, :, None]], lowest=-math.inf, highest=math.inf)
    found = mean_interval(arm(scores))
    ends = (found.mean, found.low, found.high)
    assert ends == pytest.approx([expit(x) for x in (expected.mean, expected.low, expected.high)])


def contrast(p_value=0.5, interval_90=(-0.5, 0.5), sign=1.0, num_seeds=3):
    low, high = interval_90
    found = compare(arm(table(3, 0)), arm(table(num_seeds, 1)))
    return replace(
        found,
        p_value=p_value,
        logit_difference=Interval(mean=sign, low=sign, high=sign),
        interval_90=Interval(mean=0.0, low=low, high=high),
    )


def outcomes(*contrasts, margin=0.02):
    return [verdict.outcome for verdict in decide(contrasts, margin)]


def test_a_family_is_decided_by_holm():
    # 3·0.012 = 0.036; 2·0.02 = 0.04; 0.06 stays. Bonferroni's 3·0.02 would not decide the second.
    family = [contrast(0.02, sign=-1.0), contrast(0.012), contrast(0.06)]
    assert outcomes(*family) == [Outcome.LOWER, Outcome.HIGHER, Outcome.UNDECIDED]
    assert [v.adjusted_p_value for v in decide(family)] == pytest.approx([0.04, 0.036, 0.06])
    # With a fourth comparison 4·0.012 = 0.048 is decided, 3·0.02 = 0.06 not.
    assert outcomes(*family, contrast(0.9))[:2] == [Outcome.UNDECIDED, Outcome.HIGHER]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7), st.floats(0, 1))
def test_another_comparison_never_decides_one_that_was_open(p_values, another):
    family = [contrast(p) for p in p_values]
    alone, larger = outcomes(*family), outcomes(*family, contrast(another))
    assert all(
        after != Outcome.HIGHER or before == Outcome.HIGHER for before, after in zip(alone, larger, strict=False)
    )


def test_equivalent_needs_the_whole_interval_inside_the_margin():
    assert outcomes(contrast(interval_90=(-0.019, 0.019))) == [Outcome.EQUIVALENT]
    assert outcomes(contrast(interval_90=(-0.021, 0.001))) == [Outcome.UNDECIDED]
    assert outcomes(contrast(interval_90=(-0.001, 0.021))) == [Outcome.UNDECIDED]
    assert outcomes(contrast(interval_90=(-0.001, 0.021)), margin=0.03) == [Outcome.EQUIVALENT]
    # A difference that is sure and small is first of all a difference.
    assert outcomes(contrast(0.001, interval_90=(0.001, 0.002))) == [Outcome.HIGHER]


def test_two_seeds_decide_nothing_and_still_count_in_the_family():
    few = compare(arm(table(3, 0), table(3, 1)), arm(table(3, 2, shift=9.0), table(2, 3, shift=9.0)))
    assert few.p_value < 0.001
    family = [few, contrast(0.03)]
    # 2·0.03: the comparison without a verdict was made.
    assert outcomes(*family) == [Outcome.TOO_FEW_SEEDS, Outcome.UNDECIDED]
    assert [v.adjusted_p_value for v in decide(family)] == pytest.approx([1.0, 0.06])


def test_one_seed_has_no_interval():
    found = compare(arm(table(3, 0)), arm(table(1, 1)))
    assert math.isnan(found.standard_error)
    assert math.isnan(found.difference.low)
    assert outcomes(found) == [Outcome.TOO_FEW_SEEDS]
    assert math.isnan(mean_interval(arm(table(1, 0))).high)


@pytest.mark.parametrize("num_worlds", [1, 2])
def test_arms_of_which_nothing_varies_are_undecided(num_worlds):
    """Three runs at 0 each, as if no run reached any level."""
    same = arm(*[torch.full((3, 16), -9.2)] * num_worlds)
    found = compare(same, same)
    assert (found.logit_difference.mean, found.p_value) == (0.0, 1.0)
    assert outcomes(found) == [Outcome.UNDECIDED]


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ConfigError, match=r"runs in \['world 0', 'world 1'\] and b in \['world 0'\]"):
        compare(arm(table(3, 0), table(3, 1)), arm(table(3, 2), name="b"))
    with pytest.raises(ConfigError, match="different numbers of blocks in world 0"):
        compare(arm(table(3, 0)), arm(table(3, 1, num_blocks=8)))
    with pytest.raises(ConfigError, match="no world"):
        mean_interval(arm())
    with pytest.raises(ConfigError, match=r"margin 2\.0: "):
        decide([contrast()], margin=2.0)


def test_two_samples_of_one_method_seldom_differ():
    """30 families of 7 through the whole pipeline; the benchmark has 200 and more designs."""
    size = {"num_seeds": 3, "num_worlds": 1, "num_problems": 128}
    design, rng = BENCHMARK["Design"](name="", later_cliffs=(), **size), np.random.default_rng(0)
    families = [design.family(rng)[0] for _ in range(30)]
    false = [any(map(BENCHMARK["is_found"], outcomes(*family))) for family in families]
    # At a rate of 0.05 there are 7 or more of 30 with probability 0.0006.
    assert sum(false) < 7
    holds = [BENCHMARK["holds"](found, 0.0) for family in families for found in family]
    assert 0.90 <= np.mean(holds) <= 0.99

import math

import numpy as np
import pytest
from scipy.stats import t

from apo_lab.statistics.exact import exact_pass_at_k
from apo_lab.statistics.levels import at_levels, difference_band
from benchmarks.accuracy.cliffs import Cliff, SimulatedWorld, simulated_run


def test_at_a_single_level_the_band_is_the_interval_of_two_means():
    """Welch, by hand: variances 4/3/3 and 1/4 of the means, freedom of Satterthwaite, t of 0.975."""
    before, after = np.array([[0.1, 0.3, 0.5]]), np.array([[0.6, 0.7, 0.8, 0.9]])
    parts = [values.var(ddof=1) / values.size for values in (before, after)]
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 3)
    band = difference_band({"a": before}, {"a": after})
    assert band.mean.item() == pytest.approx(0.45)
    half = t.ppf(0.975, freedom) * math.sqrt(sum(parts))
    assert (band.high - band.mean).item() == pytest.approx(half, rel=0.05)  # the quantile is simulated
    assert (band.mean - band.low).item() == pytest.approx((band.high - band.mean).item())


def test_worlds_have_equal_weights_whatever_their_runs():
    before = {"a": np.array([[0.0, 0.2]]), "b": np.array([[0.5, 0.5, 0.8]])}
    after = {"a": np.array([[0.4, 0.4, 0.4, 0.4]]), "b": np.array([[0.6, 0.6]])}
    assert difference_band(before, after).mean.item() == pytest.approx((0.3 + 0.0) / 2)


def test_a_band_over_many_levels_is_wider_than_an_interval_at_one():
    rng = np.random.default_rng(0)
    before, after = ({"a": rng.standard_normal((40, 6))} for _ in range(2))
    whole = difference_band(before, after)
    alone = difference_band({"a": before["a"][:1]}, {"a": after["a"][:1]})
    assert whole.high[0] - whole.low[0] > 1.2 * (alone.high[0] - alone.low[0])


def test_what_few_runs_reach_has_no_band_and_what_none_reaches_no_mean():
    nan = math.nan
    before = {"a": np.array([[0.1, 0.2], [0.1, 0.2], [0.1, 0.2]])}
    after = {"a": np.array([[0.5, 0.7], [0.5, nan], [nan, nan]])}
    band = difference_band(before, after)
    assert band.mean[:2].tolist() == pytest.approx([0.45, 0.35])
    assert [math.isnan(end) for end in band.low] == [False, True, True]
    assert math.isnan(band.mean[2])


def test_the_band_of_two_samples_of_one_method_holds_0_at_all_levels_together():
    """40 studies; the benchmark has 200 of three designs. At a rate of 0.05 six miss with probability 0.014."""
    levels, rng, missed = np.linspace(0.15, 0.36, 22), np.random.default_rng(0), 0

    def curves(world):
        runs = [simulated_run(world, Cliff(middle=0.33, share=0.26), rng) for _ in range(4)]
        ends = [(run.mean(1).numpy(), exact_pass_at_k(run, 64).mean(1).numpy()) for run in runs]
        return {"a": np.stack([at_levels(ones, many, levels) for ones, many in ends], axis=1)}

    for _ in range(40):
        world = SimulatedWorld.draw(128, rng)
        band = difference_band(curves(world), curves(world))
        missed += bool(((band.low > 0) | (band.high < 0)).any())
    assert missed < 6

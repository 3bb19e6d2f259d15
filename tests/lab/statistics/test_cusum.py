import math

import numpy as np
import pytest

from apo_lab.statistics.cusum import Cusum, fit_baseline


def series(generator, length, phi):
    """A stationary first-order autoregression."""
    noise = generator.standard_normal(length)
    values = [noise[0] / math.sqrt(1 - phi * phi)]
    for shock in noise[1:]:
        values.append(phi * values[-1] + shock)
    return np.array(values)


def test_the_sum_is_the_recursion_written_out():
    values = [2.0, 4.0, 3.0, 1.0, 2.5, -3.0, -2.0, 9.0]
    cusum = Cusum(num_baseline=4, threshold=100.0)
    seen = []
    for value in values:
        cusum.add(value)
        seen.append(cusum.value)
    # μ = 2.5, d = (−.5, 1.5, .5, −1.5); Σ d_t d_{t−1} = −.75 + .75 − .75, Σ d² = .25 + 2.25 + .25
    phi = -0.75 / 2.75
    phi += (1 + 3 * phi) / 4
    residuals = [1.5 + 0.5 * phi, 0.5 - 1.5 * phi, -1.5 - 0.5 * phi]
    sd = np.std(residuals, ddof=1)
    expected = 0.0
    last = 1.0
    for place, value in enumerate(values[4:], start=4):
        expected = max(0.0, expected - ((value - 2.5) - phi * (last - 2.5)) / sd - 0.5)
        assert seen[place] == pytest.approx(expected, abs=1e-12)
        last = value
    assert [math.isnan(value) for value in seen[:3]] == [True] * 3
    assert seen[3] == 0.0


# Seen in 4000 series each; the values of the specification are .035, .064 and, at φ = 0.9, .17.
@pytest.mark.parametrize(("phi", "rate"), [(0.0, 0.035), (0.5, 0.060), (0.9, 0.140)])
def test_false_alarms_of_a_series_that_does_not_fall(phi, rate):
    generator = np.random.default_rng(0)
    num_series, alarms = 200, 0
    for _ in range(num_series):
        cusum = Cusum(num_baseline=40, threshold=12.0)
        for value in series(generator, 260, phi):
            cusum.add(float(value))
            if cusum.value > cusum.threshold:
                alarms += 1
                break
    assert alarms / num_series == pytest.approx(rate, abs=3 * math.sqrt(rate * (1 - rate) / num_series))


def test_a_fall_by_two_standard_deviations_is_found_within_fifteen_steps():
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(100):
        cusum = Cusum(num_baseline=40, threshold=12.0)
        values = series(generator, 80, 0.0)
        values[65:] -= 2.0
        for value in values:
            cusum.add(float(value))
        found += cusum.is_alarm
    assert found / 100 >= 0.9


def test_a_rise_is_no_alarm_and_what_is_not_finite_is_left_out_and_counted():
    cusum = Cusum(num_baseline=3, threshold=1.0)
    for value in (0.0, 1.0, math.nan, 0.0, math.inf, 50.0, 60.0):
        cusum.add(value)
    assert (cusum.value, cusum.is_alarm, cusum.num_left_out) == (0.0, False, 2)


def test_a_beginning_that_does_not_move_says_nothing():
    cusum = Cusum(num_baseline=3, threshold=1.0)
    for value in (1.0, 1.0, 1.0, -5.0):
        cusum.add(value)
    assert math.isnan(cusum.value)
    assert not cusum.is_alarm


def test_slow_series_are_said_not_to_be_calibrated():
    slow = fit_baseline([float(i) for i in range(40)])
    assert slow.autocorrelation > 0.8
    assert not slow.is_calibrated


@pytest.mark.parametrize("cut", [2, 5])
def test_gone_on_from_its_state_it_is_the_same_sum(cut):
    values = [2.0, 4.0, 3.0, 1.0, 2.5, -3.0, -2.0]
    whole, first = Cusum(4, 12.0), Cusum(4, 12.0)
    for value in values[:cut]:
        first.add(value)
    second = Cusum(4, 12.0)
    second.load_state_dict(first.state_dict())
    for value in values[cut:]:
        second.add(value)
    for value in values:
        whole.add(value)
    assert second.state_dict() == whole.state_dict()

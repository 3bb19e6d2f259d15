import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from apo_lightning.errors import ConfigError
from apo_report.statistics.multiplicity import holm, seeds_needed

P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=8)


def rejected(p_values: list[float], level: float) -> set[int]:
    """Holm's procedure as published: from the smallest p on, reject while p_(i) ≤ level/(m − i + 1)."""
    found: set[int] = set()
    for step, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        if p_values[index] > level / (len(p_values) - step):
            break
        found.add(index)
    return found


@given(P_VALUES, st.floats(0.001, 0.5))
def test_adjusted_values_reject_what_the_published_procedure_rejects(p_values, level):
    adjusted = holm(p_values)
    if all(not math.isclose(value, level, rel_tol=1e-9) for value in adjusted):
        assert {i for i, value in enumerate(adjusted) if value <= level} == rejected(p_values, level)


@given(P_VALUES)
def test_an_adjusted_value_lies_between_the_value_and_bonferronis(p_values):
    for value, adjusted in zip(p_values, holm(p_values), strict=True):
        assert value <= adjusted <= min(1.0, len(p_values) * value) + 1e-12


def test_a_p_value_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="nan"):
        holm([0.1, math.nan])


# d = δ/s of 0.2, 0.5, 0.8 and 1 at 5 % and a power of 80 %: Cohen 1988, table 2.4.1 (393 from the normal
# approximation of his table is 394 exactly), which every program for power gives.
@pytest.mark.parametrize(("effect", "number"), [(0.2, 394), (0.5, 64), (0.8, 26), (1.0, 17)])
def test_numbers_of_seeds_are_those_of_the_tables(effect, number):
    assert seeds_needed(0.01 / effect) == number


def test_that_many_seeds_find_the_difference_as_often_as_asked():
    """20,000 experiments, standard error 0.003; by noncentral t six seeds find it with 0.876, five with 0.791."""
    std, difference = 0.005, 0.01
    generator = np.random.default_rng(0)
    powers = []
    for number in (5, 6):
        a, b = generator.normal(0, std, (20_000, number)), generator.normal(difference, std, (20_000, number))
        powers.append(((stats.ttest_ind(b, a, axis=1).pvalue <= 0.05) & (b.mean(1) > a.mean(1))).mean())
    assert powers == pytest.approx([0.791, 0.876], abs=0.012)
    assert seeds_needed(std, difference) == 6


def test_seeds_without_spread_need_two_and_a_wrong_spread_is_refused():
    assert seeds_needed(0.0) == seeds_needed(1e-9) == 2
    for settings in (
        {"std_between_seeds": math.nan},
        {"difference": 0.0},
        {"power": 1.0},
        {"power": 0.0},
        {"level": 1.0},
        {"level": 0.0},
    ):
        (wrong,) = settings
        with pytest.raises(ConfigError, match=f"{wrong}={settings[wrong]}"):
            seeds_needed(**{"std_between_seeds": 0.01, **settings})

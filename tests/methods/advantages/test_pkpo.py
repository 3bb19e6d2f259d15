"""PKPO: by hand, by brute force, by identities."""

from dataclasses import replace
from itertools import combinations
from math import comb, sqrt

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from advantage_cases import check_apo, inputs
from apo_lightning.advantages import LeaveOneOut, PassAtK, Truncated
from apo_lightning.errors import ConfigError
from apo_methods.advantages import PKPO

BASELINES = ("loo", "loo_centred", "loo_minus_one")


def binary(n, c):
    return inputs([[1.0] * c + [0.0] * (n - c)])


@pytest.mark.parametrize(
    ("c", "baseline", "right", "wrong"),
    [
        (1, "loo", 4, -0.8980),
        (1, "loo_centred", 4, -0.5714),
        (1, "loo_minus_one", 4, 0),
        (2, "loo", 1.3878, -1.0612),
        (2, "loo_centred", 1.7143, -0.5714),
        (2, "loo_minus_one", 2.2857, 0),
        (4, "loo", -0.4408, -0.6857),
        (4, "loo_centred", 0.1143, -0.1143),
        (4, "loo_minus_one", 0.4571, 0),
        (6, "loo", -0.5714, -0.5714),
        (6, "loo_centred", 0, 0),
    ],
)
def test_pkpo_of_zeros_and_ones(c, baseline, right, wrong):
    # n = 8, k = 4; c = 1, centred, by hand: correct 8·4/8·(1 − ρ), ρ(7, 0, 4) = 0;
    # wrong 8·4/8·(ρ(7, 1, 3) − ρ(7, 1, 4)) = 4·(3/7 − 4/7).
    values = PKPO(k=4, baseline=baseline)(binary(8, c)).values[0].tolist()
    assert values == pytest.approx([right] * c + [wrong] * (8 - c), abs=5e-5)


@pytest.mark.parametrize(
    ("baseline", "expected"),
    [
        ("loo", [-19 / 72, -19 / 72, -12 / 72, 16 / 72]),
        ("loo_minus_one", [0, 1 / 24, 3 / 24, 9 / 24]),
        ("loo_centred", [-3 / 24, -3 / 24, -1 / 24, 7 / 24]),
    ],
)
def test_pkpo_of_other_rewards(baseline, expected):
    values = PKPO(k=2, baseline=baseline)(inputs([[0.5, 0.0, 1.0, 0.25]])).values[0] / 4
    assert values[[1, 3, 0, 2]].tolist() == pytest.approx(expected, abs=1e-12)


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=3, max_size=7), st.data())
def test_pkpo_against_all_subsets(rewards, data):
    n, k = len(rewards), data.draw(st.integers(2, len(rewards) - 1))
    for baseline in BASELINES:
        values = PKPO(k=k, baseline=baseline)(inputs([rewards])).values[0].tolist()
        for i in range(n):
            others = [r for j, r in enumerate(rewards) if j != i]
            share = sum(max(rewards[j] for j in subset) for subset in combinations(range(n), k) if i in subset) / comb(
                n, k
            )
            size = k - 1 if baseline == "loo_minus_one" else k
            mean = sum(map(max, combinations(others, size))) / comb(n - 1, size)
            factor = k / (n - 1) if baseline == "loo" else k / n
            assert values[i] == pytest.approx(n * (share - factor * mean), abs=1e-9)


def test_pkpo_is_pass_at_k_training_times_its_standard_deviation():
    for n in range(3, 12):
        for k in range(1, n):
            for c in range(n + 1):
                mean = 1 - comb(n - c, k) / comb(n, k)
                scale = k * n / (n - k) * (sqrt(mean * (1 - mean)) + 1e-6)
                expected = scale * PassAtK(k=k)(binary(n, c)).values
                torch.testing.assert_close(PKPO(k=k)(binary(n, c)).values, expected, atol=1e-9, rtol=0)


def test_pkpo_at_one_is_rloo():
    given_rewards = inputs([[1.0, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(PKPO(k=1)(given_rewards).values, LeaveOneOut()(given_rewards).values)


def test_pkpo_changes_k_at_its_step():
    annealed, step = PKPO(k=4, later_k={10: 1}), binary(8, 2)
    assert torch.equal(annealed(replace(step, step=9)).values, PKPO(k=4)(step).values)
    assert torch.equal(annealed(replace(step, step=10)).values, PKPO(k=1)(step).values)


def test_apo_refuses_the_baselines_that_give_no_error_or_a_right_answer_a_negative_advantage():
    for baseline, match in (("loo_minus_one", "gives no error A < 0"), ("loo", "trigger=incorrect")):
        for advantage in (pkpo := PKPO(k=4, baseline=baseline), Truncated(pkpo)):
            with pytest.raises(ConfigError, match=match):
                check_apo(advantage)
    check_apo(PKPO(k=4))


def test_values_out_of_range():
    for make, match in (
        (lambda: PKPO(k=0), "k is 0"),
        (lambda: PKPO(k=1, baseline="loo_minus_one"), "at least 2"),
        (lambda: PKPO(k=2, baseline="mean"), "baseline is 'mean'"),
        (lambda: PKPO(k=8).check(8), "at most 7"),
        (lambda: PKPO(k=2, later_k={5: 9}).check(8), "k is 9"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()
    PKPO(k=8, baseline="loo_minus_one").check(8)

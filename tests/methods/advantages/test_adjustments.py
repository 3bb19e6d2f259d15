"""Adjusted and shaped advantages: by hand, by brute force, and where they are the estimator's own."""

from dataclasses import replace
from math import comb, exp, sqrt

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from advantage_cases import check_apo, inputs
from apo_lightning.advantages import Adjusted, GroupNormalized, LeaveOneOut, Shaped, SignedReward, Truncated
from apo_lightning.advantages.estimator import keep_all
from apo_lightning.errors import ConfigError
from apo_lightning.types import Needs
from apo_methods.advantages import (
    DifferentialSmoothing,
    InverseFrequency,
    MaxRL,
    PassAtKWeight,
    RepeatedAnswers,
    UniformCorrect,
    Unlikeliness,
)

GROUP = st.lists(st.tuples(st.booleans(), st.floats(-5, 0)), min_size=2, max_size=8)


@given(GROUP, st.floats(0, 1))
def test_ucpo_is_the_inverse_probability_of_its_code(group, tau):
    """q = softmax(ℓ) over the correct, weights (1 − τ)/n + τ·q⁻¹/Σ q⁻¹, times n."""
    correct, logprobs = zip(*group, strict=True)
    step = inputs([[float(c) for c in correct]], mean_logprobs=torch.tensor([logprobs], dtype=torch.float64))
    values = torch.randn(1, len(group), dtype=torch.float64)
    adjusted = UniformCorrect(tau=tau)(step, values)[0].tolist()
    total = sum(exp(x) for c, x in group if c)
    inverse = [total / exp(x) if c else 0.0 for c, x in group]
    n = sum(correct)
    for i, (is_correct, _) in enumerate(group):
        factor = n * ((1 - tau) / n + tau * inverse[i] / sum(inverse)) if is_correct else 1.0
        assert adjusted[i] == pytest.approx(values[0, i].item() * factor, rel=1e-9)


def test_ucpo_keeps_the_total_and_without_tau_it_is_its_estimator():
    step = inputs(
        [[1.0, 1.0, 1.0, 0.0], [0.0] * 4], mean_logprobs=torch.tensor([[-3.0, -0.1, -1.0, -2.0]] * 2).double()
    )
    plain = GroupNormalized()(step).values
    shared = Adjusted(GroupNormalized(), UniformCorrect())(step).values
    torch.testing.assert_close(shared.sum(1), plain.sum(1))
    assert shared[0, 0] > shared[0, 2] > shared[0, 1] > 0
    assert torch.equal(Adjusted(GroupNormalized(), UniformCorrect(tau=0))(step).values, plain)


@pytest.mark.parametrize(("n", "c", "k", "weight"), [(8, 3, 4, 0.714286), (8, 5, 5, 0.0), (8, 8, 1, 1.0), (4, 0, 4, 4)])
def test_pass_at_k_weight(n, c, k, weight):
    # k·C(n − c, k − 1)/C(n, k − 1): 4·10/56; C(3, 4) = 0; k = 1 changes nothing; without a success 4·4/4.
    step = inputs([[1.0] * c + [0.0] * (n - c)])
    assert PassAtKWeight(k=k)(step, torch.ones(1, n))[0].tolist() == pytest.approx([weight] * n, abs=1e-6)


@given(st.integers(1, 8), st.floats(0.05, 0.95))
def test_the_pass_at_k_weight_is_unbiased(k, p):
    n = 8
    mean = 0.0
    for c in range(n + 1):
        step = inputs([[1.0] * c + [0.0] * (n - c)])
        weight = PassAtKWeight(k=k)(step, torch.ones(1, n, dtype=torch.float64))[0, 0].item()
        mean += comb(n, c) * p**c * (1 - p) ** (n - c) * weight
    assert mean == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


def test_repeated_answers():
    step = inputs([[1.0, 1.0, 1.0, 0.0, 0.0, 0.0]], answers=(("7", "7", "7", "2", None, None),))
    penalised = RepeatedAnswers(coef=0.6)(step, torch.ones(1, 6, dtype=torch.float64))[0].tolist()
    assert penalised == pytest.approx([0.8, 0.8, 0.8, 1, 1, 1])


MAX_RL = Adjusted(GroupNormalized(normalize_std=False), MaxRL())


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [([1, 0, 0, 0], [3, -1, -1, -1]), ([1, 1, 0, 0], [1, 1, -1, -1]), ([0] * 4, [0] * 4), ([1] * 4, [0] * 4)],
)
def test_max_rl(rewards, expected):
    # r/r̄ − 1, but for the 1e-6 beside r̄.
    assert MAX_RL(inputs([rewards])).values[0].tolist() == pytest.approx(expected, abs=2e-5)


@given(st.integers(2, 8), st.floats(0.05, 0.95))
def test_max_rl_is_unbiased_for_log_p_cut_behind_order_n_minus_1(n, p):
    """By p itself: the score of a right completion is 1/p, that of a wrong one −1/(1 − p)."""
    centred = with_every_group = 0.0
    for c in range(n + 1):
        values = MAX_RL(inputs([[1.0] * c + [0.0] * (n - c)])).values[0].tolist()
        scores = [1 / p] * c + [-1 / (1 - p)] * (n - c)
        chance = comb(n, c) * p**c * (1 - p) ** (n - c)
        centred += chance * sum(a * s for a, s in zip(values, scores, strict=True)) / n
        with_every_group += chance * sum((a if c else -1) * s for a, s in zip(values, scores, strict=True)) / n

    def slope(order):
        return sum((1 - p) ** (k - 1) for k in range(1, order + 1))

    assert centred == pytest.approx(slope(n - 1), rel=1e-4)
    assert with_every_group == pytest.approx(slope(n), rel=1e-4)


def test_max_rl_refuses_other_rewards():
    assert MAX_RL.needs.binary_rewards
    with pytest.raises(ConfigError, match=r"a reward is 0\.5: MaxRL"):
        MAX_RL(inputs([[0.5, 0.0]]))


ANSWERS = (("4", "4", "6", None, None),)


@pytest.mark.parametrize(
    ("alpha", "scaled", "expected"),
    [
        # r/f = ½, ½, 1, 0, 0, less the mean of the other four.
        (1, "reward", [1 / 8, 1 / 8, 3 / 4, -1 / 2, -1 / 2]),
        # A of RLOO is ½ where right, −¾ where wrong; f = 2, 2, 1, 1, 1.
        (1, "advantage", [1 / 4, 1 / 4, 1 / 2, -3 / 4, -3 / 4]),
        (2, "advantage", [1 / 8, 1 / 8, 1 / 2, -3 / 4, -3 / 4]),
    ],
)
def test_inverse_frequency(alpha, scaled, expected):
    step = inputs([[1.0, 1.0, 1.0, 0.0, 0.0]], answers=ANSWERS)
    assert InverseFrequency(LeaveOneOut(), alpha, scaled)(step).values[0].tolist() == pytest.approx(expected)


@given(st.lists(st.sampled_from("abc"), min_size=2, max_size=8), st.floats(0, 3))
def test_at_exponent_1_all_right_answers_weigh_alike_and_at_0_nothing_changes(answers, alpha):
    step = inputs([[1.0] * len(answers) + [0.0]], answers=((*answers, None),))
    shares = InverseFrequency(lambda inputs: keep_all(inputs.rewards))(step).values[0].tolist()
    for answer in set(answers):
        assert sum(x for x, a in zip(shares, answers, strict=False) if a == answer) == pytest.approx(1)
    for scaled in ("reward", "advantage"):
        plain = GroupNormalized()(step).values
        assert torch.equal(InverseFrequency(GroupNormalized(), 0, scaled)(step).values, plain)
    kept = InverseFrequency(GroupNormalized(), alpha, "advantage")(step).values
    assert torch.equal(kept.sign(), plain.sign())


def test_apo_triggers_on_wrong_answers_alone_where_right_ones_are_punished():
    def check(trigger, adjustment):
        check_apo(Adjusted(GroupNormalized(), adjustment), trigger)

    check("incorrect", RepeatedAnswers(coef=0.1))
    with pytest.raises(ConfigError, match="trigger=incorrect"):
        check("negative_advantage", RepeatedAnswers(coef=0.1))
    with pytest.raises(ConfigError, match="trigger=incorrect"):
        check_apo(InverseFrequency(GroupNormalized()))
    for estimator in (InverseFrequency(GroupNormalized(), scaled="advantage"), MAX_RL):
        check_apo(estimator)
    for sparing in (UniformCorrect(), PassAtKWeight(k=4)):
        check("negative_advantage", sparing)


def test_an_adjusted_estimator_reads_what_its_parts_read():
    for adjusted in (MAX_RL, Adjusted(SignedReward(), PassAtKWeight(k=2))):
        assert adjusted.needs == Needs(binary_rewards=True)
    assert Adjusted(GroupNormalized(), PassAtKWeight(k=2)).needs == Needs()


def test_values_out_of_range():
    for make, match in (
        (lambda: UniformCorrect(tau=1.5), "tau is 1.5"),
        (lambda: PassAtKWeight(k=0), "k is 0"),
        (lambda: Adjusted(GroupNormalized(), PassAtKWeight(k=10)).check(8), "at most 9"),
        (lambda: Adjusted(GroupNormalized(), PassAtKWeight(k=1)).check(1), "group_size is 1"),
        (lambda: RepeatedAnswers(coef=float("nan")), "coef is nan"),
        (lambda: Unlikeliness(coef=2), "coef is 2"),
        (lambda: InverseFrequency(GroupNormalized(), -1), "alpha is -1"),
        (lambda: InverseFrequency(GroupNormalized(), 1, "both"), "scaled is 'both'"),
        (lambda: DifferentialSmoothing(correct_coef=0, incorrect_coef=-1), "incorrect_coef is -1"),
    ):
        with pytest.raises(ConfigError, match=match):
            make()


def test_unlikeliness():
    # Ranks 0 and 3: R = (1, 1 − .25·3/4); mean .453125, std .528…
    likely = torch.tensor([[-3.0, -0.1, -2.0, -1.0]])
    step = inputs([[1.0, 1.0, 0.0, 0.0]], mean_logprobs=likely)
    values = Shaped(GroupNormalized(), Unlikeliness())(step).values[0].tolist()
    assert values == pytest.approx([1.0342, 0.6796, -0.8569, -0.8569], abs=5e-5)
    assert torch.equal(Unlikeliness(coef=0)(step), step.rewards)


def test_unlikeliness_leaves_groups_without_an_error_alone():
    step = inputs([[1.0] * 4], mean_logprobs=torch.tensor([[-3.0, -0.1, -2.0, -1.0]]))
    assert (Shaped(GroupNormalized(), Unlikeliness())(step).values == 0).all()


@pytest.mark.parametrize(("size", "first"), [(8, 7), (16, 14), (32, 28)])
def test_a_likely_right_answer_may_be_punished(size, first):
    def lowest_of_correct(c):
        # The likeliest completion is correct, the next ones are the errors.
        order = torch.tensor([size - 1, *range(c - 1), *range(c - 1, size - 1)])
        step = replace(inputs([[1.0] * c + [0.0] * (size - c)]), mean_logprobs=order[None].double())
        return Shaped(GroupNormalized(), Unlikeliness())(step).values[0, :c].min()

    assert lowest_of_correct(first - 1) >= 0 > lowest_of_correct(first)


def test_differential_smoothing():
    # log π = length·mean: −2, −6, −1, −4 nats; A = ±√3/2 but for the estimator's ε.
    step = inputs(
        [[1.0, 1.0, 0.0, 0.0]],
        mean_logprobs=torch.tensor([[-2.0, -3.0, -0.5, -2.0]]),
        lengths=torch.tensor([[1, 2, 2, 2]]),
    )
    smoothed = Adjusted(GroupNormalized(), DifferentialSmoothing(correct_coef=0.1, incorrect_coef=0.05))
    a = sqrt(3) / 2
    expected = [a + 0.2, a + 0.6, -a - 0.05, -a - 0.2]
    assert smoothed(step).values[0].tolist() == pytest.approx(expected, abs=1e-5)
    plain = Adjusted(GroupNormalized(), DifferentialSmoothing(correct_coef=0, incorrect_coef=0))
    assert torch.equal(plain(step).values, GroupNormalized()(step).values)
    check_apo(smoothed)
    assert (smoothed.spares_errors, smoothed.punishes_correct) == (False, False)
    equal = smoothed(replace(step, rewards=torch.zeros_like(step.rewards), is_correct=step.rewards < 0)).values[0]
    assert equal.tolist() == pytest.approx([-0.1, -0.3, -0.05, -0.2], abs=1e-6)


def test_apo_refuses_unlikeliness():
    for advantage in (unlikely := Shaped(GroupNormalized(), Unlikeliness()), Truncated(unlikely)):
        with pytest.raises(ConfigError, match="trigger=incorrect"):
            check_apo(advantage)

"""Advantages that depend on the likelihood of a completion in its group: by hand, and where they do nothing."""

from dataclasses import replace
from math import sqrt

import pytest
import torch

from advantage_cases import check_apo, inputs
from apo_lab.advantages import DifferentialSmoothing, Unlikeliness
from apo_lightning.advantages import Adjusted, GroupNormalized, Shaped, Truncated
from apo_lightning.errors import ConfigError


def test_unlikeliness():
    # Ranks 0 and 3: R = (1, 1 − .25·3/4); mean .453125, std .528…
    likely = torch.tensor([[-3.0, -0.1, -2.0, -1.0]])
    step = inputs([[1.0, 1.0, 0.0, 0.0]], mean_logprobs=likely)
    assert Unlikeliness()(step).tolist() == [[1.0, 0.8125, 0.0, 0.0]]
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


def test_values_out_of_range():
    with pytest.raises(ConfigError, match="coef is 2"):
        Unlikeliness(coef=2)
    with pytest.raises(ConfigError, match="incorrect_coef is -1"):
        DifferentialSmoothing(correct_coef=0, incorrect_coef=-1)

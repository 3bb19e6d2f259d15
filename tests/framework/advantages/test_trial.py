"""A faulty estimator, and one that reads what the reward does not give, are refused before a run."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch

from apo_lightning.advantages import GAE, GroupNormalized, LeaveOneOut, PassAtK, Truncated
from apo_lightning.advantages.trial import try_advantage
from apo_lightning.errors import ConfigError
from apo_lightning.rewards import CallableReward, MathVerifyReward, WeightedRewards
from apo_lightning.types import Advantages, Needs, Verdict

RIGHT, WRONG, NONE = (
    Verdict(reward=1.0, status="correct", extracted="7"),
    Verdict(reward=0.0, status="incorrect", extracted="8"),
    Verdict(reward=0.0, status="unparsed"),
)
VERDICTS = [RIGHT, WRONG, NONE]
OWN = MathVerifyReward()


@dataclass
class Gives:
    result: Any
    needs: ClassVar[Needs] = Needs()

    def __call__(self, inputs):
        return self.result(inputs) if callable(self.result) else self.result


class Counts(Gives):
    needs: ClassVar[Needs] = Needs(answers=True)


def keep(inputs, values):
    return Advantages(values=values, keep=torch.ones_like(values, dtype=torch.bool))


def kept_as_numbers(inputs):
    found = keep(inputs, inputs.rewards)
    object.__setattr__(found, "keep", inputs.rewards)  # outside of the tests no type is checked
    return found


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda inputs: inputs.rewards, "which returns a Tensor: return Advantages"),
        (lambda inputs: keep(inputs, inputs.rewards[:1]), r"whose values are \[1, 4\] for \[2, 4\] rewards"),
        (kept_as_numbers, "whose keep is torch.float32: give True or False"),
        (lambda inputs: keep(inputs, 0 / inputs.rewards.std(1, keepdim=True)), "whose values are "),
        (lambda inputs: keep(inputs, inputs.rewards / 0), "whose values are not finite on the rewards"),
        (lambda inputs: inputs.rewards[9], rf"which fails on made-up rewards: IndexError: .* \({__file__}:\d+\)"),
    ],
)
def test_a_faulty_estimator_is_one_line(result, said):
    with pytest.raises(ConfigError, match=rf"^algo.advantage is Gives, {said}") as caught:
        try_advantage(Gives(result), OWN, VERDICTS, 4)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("estimator", [GroupNormalized(), LeaveOneOut(), PassAtK(k=2), Truncated(LeaveOneOut()), GAE()])
def test_a_sound_estimator_passes(estimator):
    try_advantage(estimator, OWN, VERDICTS, 4)
    try_advantage(estimator, OWN, [Verdict(reward=0.0, status="unparsed", is_scored=False), *VERDICTS], 4)


def number(completions):
    return [0.0] * len(completions)


def no_answer_yet(completions):
    return [(0.0, None)] * len(completions)


@pytest.mark.parametrize("within", [CallableReward, lambda function: WeightedRewards({"own": function})])
def test_answers_that_nobody_states_cannot_be_counted(within):
    """A function that finds no answer in what was made up may find one in the run, and is not refused."""
    estimator = Counts(lambda inputs: keep(inputs, inputs.rewards))
    for function, said in ((no_answer_yet, None), (number, r"which counts equal .* states none.*\(reward, an")):
        reward = within(function)
        verdicts = reward.score(["7", "8", ""], ["7"] * 3)
        for wrapped in (estimator, Truncated(estimator)):
            with pytest.raises(ConfigError, match=said) if said else nullcontext():
                try_advantage(wrapped, reward, verdicts, 4)
    try_advantage(estimator, OWN, VERDICTS, 4)


def test_rewards_between_0_and_1_are_refused_by_estimators_of_0_and_1():
    with pytest.raises(ConfigError, match=r"a reward is 0\.5: pass@k training is defined for rewards of 0 and 1 only"):
        try_advantage(PassAtK(k=2), OWN, [RIGHT, Verdict(reward=0.5, status="incorrect")], 4)

import functools
import math

import pytest

from apo_lightning.errors import ConfigError
from apo_lightning.rewards import CallableReward, Reward


def exact(completions, answer, **kwargs):
    return [float(completion == gold) for completion, gold in zip(completions, answer, strict=True)]


def statuses(function, num_completions: int = 2) -> list[str]:
    verdicts = CallableReward(function).score(["a"] * num_completions, ["a"] * num_completions)
    assert all(verdict.reward == 0.0 for verdict in verdicts if verdict.status not in ("correct", "incorrect"))
    return [verdict.status for verdict in verdicts]


def test_a_reward_in_trl_signature_is_used_as_it_is():
    verdicts = CallableReward(exact).score(["a", "b"], ["a", "a"])
    assert [(verdict.reward, verdict.status) for verdict in verdicts] == [(1.0, "correct"), (0.0, "incorrect")]


def test_a_function_receives_only_what_it_names():
    def named(solution, completions):
        assert solution == ["gold"]
        return [0.5]

    assert CallableReward(named, correct_threshold=0.5).score(["a"], ["gold"])[0].status == "correct"
    assert CallableReward(named).score(["a"], ["gold"])[0].reward == 0.5
    assert CallableReward(named).score(["a"], ["gold"])[0].status == "incorrect"


def test_a_function_that_needs_what_a_reward_does_not_have_is_refused_at_once():
    with pytest.raises(ConfigError, match="prompts"):
        CallableReward(lambda prompts, completions: [1.0])
    CallableReward(functools.partial(lambda prompts, completions: [1.0], prompts=[]))
    with pytest.raises(ConfigError, match="_partial_"):
        CallableReward("my_package.my_reward")

    async def later(completions):
        return [1.0]

    with pytest.raises(ConfigError, match="asynchronous"):
        CallableReward(later)


def test_none_means_not_judged():
    assert statuses(lambda completions: [None, 1.0]) == ["unparsed", "correct"]


@pytest.mark.parametrize(
    "function",
    [
        lambda completions: 1 / 0,
        lambda completions: [1.0],
        lambda completions: [1.0] * 3,
        lambda completions: 1.0,
        lambda completions: None,
    ],
)
def test_a_function_that_fails_makes_every_verdict_an_error_and_says_why(function, caplog: pytest.LogCaptureFixture):
    assert statuses(function) == ["error", "error"]
    assert "failed" in caplog.text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "high", [1.0]])
def test_an_entry_that_is_no_finite_number_is_an_error_of_its_own(value, caplog: pytest.LogCaptureFixture):
    assert statuses(lambda completions: [value, 1.0]) == ["error", "correct"]
    assert "not a finite number" in caplog.text


def test_it_is_a_reward_that_accepts_every_data_set():
    reward = CallableReward(exact)
    assert isinstance(reward, Reward)
    reward.check_answers(["", "anything"])
    reward.close()

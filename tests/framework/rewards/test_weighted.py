import pytest
import torch

from apo_lightning.advantages import GAE, GroupNormalized, PassAtK
from apo_lightning.contracts import advantages_of
from apo_lightning.errors import ConfigError
from apo_lightning.rewards import NumericReward, WeightedRewards
from apo_lightning.step.step_metrics import reward_metrics
from apo_lightning.types import AdvantageInputs, Prompt
from factories import make_rollouts


def giving(*rewards):
    return lambda completions, **kwargs: list(rewards)


def score(reward, *texts, answer="1"):
    return reward.score(list(texts), [answer] * len(texts))


def rollouts_of(verdicts, group_size):
    rollouts = make_rollouts(["correct"] * len(verdicts), group_size)
    return type(rollouts)(
        **{name: getattr(rollouts, name) for name in rollouts.__slots__} | {"verdicts": tuple(verdicts)}
    )


FIRST, SECOND = giving(1.0, 0.0, None), giving(0.5, None, None)


# R = 1 + 0.2·0.5 = 1.1, then 0, then nothing. In units of std (n − 1) two values are at ±1/√2.
def test_the_weighted_sum_and_its_advantages():
    reward = WeightedRewards({"first": FIRST, "second": SECOND}, {"second": 0.2})
    verdicts = score(reward, "a", "b", "c")
    assert [verdict.reward for verdict in verdicts] == [1.1, 0.0, 0.0]
    assert [verdict.status for verdict in verdicts] == ["correct", "incorrect", "unparsed"]
    assert [verdict.rewards for verdict in verdicts] == [
        {"first": 1.0, "second": 0.5},
        {"first": 0.0, "second": None},
        {"first": None, "second": None},
    ]
    given = advantages_of(GroupNormalized(), AdvantageInputs.of(rollouts_of(verdicts, 3)))
    torch.testing.assert_close(given.values, torch.tensor([[0.5**0.5, -(0.5**0.5), 0.0]]), atol=3e-6, rtol=0)
    assert given.keep.all()


def test_each_function_is_logged_apart_with_its_none():
    reward = WeightedRewards({"first": FIRST, "second": SECOND}, {"second": 0.2})
    metrics = reward_metrics(rollouts_of(score(reward, "a", "b", "c"), 3))
    assert metrics.pop("reward/second/std") != metrics["reward/second/mean"]  # NaN: a single value has none
    assert metrics == {
        "reward/first/mean": 0.5,
        "reward/first/std": pytest.approx(0.5**0.5),
        "reward/first/num_none": 1.0,
        "reward/second/mean": 0.5,
        "reward/second/num_none": 2.0,
    }
    assert reward_metrics(make_rollouts(["correct"], 1)) == {}


def test_the_named_function_decides_what_is_correct_and_rewards_are_functions_too():
    reward = WeightedRewards({"format": giving(1.0, 0.0), "right": NumericReward()}, {"format": 0.5}, correct="right")
    verdicts = score(reward, "2", "1")
    assert [(verdict.reward, verdict.status, verdict.extracted) for verdict in verdicts] == [
        (0.5, "incorrect", "2"),
        (1.0, "correct", "1"),
    ]
    unparsed = score(reward, "none", "nothing")[1]  # a verifier's 0 is a reward
    assert (unparsed.rewards["right"], unparsed.is_scored) == (0.0, True)


def test_a_failing_function_is_an_error_of_the_whole():
    assert [v.status for v in score(WeightedRewards({"a": giving(1.0), "b": giving(1.0, 1.0)}), "x")] == ["error"]


def test_groups_too_small_for_the_estimator_have_no_advantage():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    unscored = torch.tensor([[False, False, True, True]])
    inputs = AdvantageInputs(
        rewards=rewards, is_correct=rewards > 0, lengths=torch.ones_like(rewards).long(), unscored=unscored
    )
    assert advantages_of(PassAtK(k=2), inputs).values.tolist() == [[0.0] * 4]
    assert advantages_of(PassAtK(k=1), inputs).values.ne(0).tolist() == [[True, True, False, False]]


def test_a_critic_does_not_train_on_completions_without_a_reward():
    rewards = torch.tensor([[1.0, 0.0]])
    inputs = AdvantageInputs(
        rewards=rewards, is_correct=rewards > 0, lengths=torch.ones_like(rewards).long(), unscored=rewards == 0
    )
    given = advantages_of(GAE(), inputs)
    assert (given.values.tolist(), given.keep.tolist()) == ([[1.0, 0.0]], [[True, False]])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"functions": {}}, r"reward.functions is empty"),
        ({"functions": {"a": FIRST}, "weights": {"b": 1.0}}, r"reward.weights names 'b': the functions are a"),
        ({"functions": {"a": FIRST}, "correct": "b"}, r"reward.correct names 'b'"),
        ({"functions": {"a": FIRST}, "weights": {"a": float("inf")}}, r"reward.weights.a is inf"),
    ],
)
def test_settings_that_mean_nothing_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        WeightedRewards(**arguments)


def test_the_functions_check_and_close():
    closed = []

    class Closing(NumericReward):
        def close(self):
            closed.append(True)

    reward = WeightedRewards({"a": Closing(), "b": lambda completions, level: [1.0]})
    with pytest.raises(ConfigError, match="not a number"):
        reward.check_answers(["x"])
    with pytest.raises(ConfigError, match="needs level"):
        reward.check_prompts([Prompt(id="p", problem="", answer="1", text="", token_ids=(1,))])
    reward.close()
    assert closed == [True]

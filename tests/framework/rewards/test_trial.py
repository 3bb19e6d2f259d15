"""A reward that cannot judge is refused before a run, by its function's file and line."""

import random
from dataclasses import replace
from functools import partial

import pytest

from apo_lightning.contracts import TrainerState
from apo_lightning.errors import ConfigError
from apo_lightning.model.tokenizer import character_tokenizer, completion_ids
from apo_lightning.rewards import CallableReward, MathVerifyReward, NumericReward, Reward, WeightedRewards
from apo_lightning.rewards.trial import try_reward, weak_signal
from apo_lightning.types import Prompt, Verdict

ENCODE = partial(completion_ids, character_tokenizer())
AS_TEXT = Prompt(id="1", problem="3 + 4?", answer="7", text="3 + 4?", token_ids=(1,), columns={"level": 3})
IN_CHAT = replace(AS_TEXT, messages=({"role": "user", "content": "3 + 4?"},))


def raises(completions, **_):
    return [1 / len(completion) for completion in completions]


def wants_text(completions, answer, **_):
    return [float(text.strip() == gold) for text, gold in zip(completions, answer, strict=True)]


def silent_on_messages(completions, answer, **_):
    return [float(gold in text) for text, gold in zip(completions, answer, strict=True)]


def of_level(completions, level, **_):
    return [each / random.random() for each in level]


class Raises(Reward):
    def score(self, completions, answers):
        raise KeyError(answers[0])


class Short(Reward):
    def score(self, completions, answers):
        return [Verdict(reward=1.0, status="correct")]


def place(function):
    return rf"\({__file__}:{function.__code__.co_firstlineno + 1}\)"


def within(function, **others):
    return WeightedRewards({"right": NumericReward("first"), "own": function}, **others)


@pytest.mark.parametrize(
    ("reward", "prompt", "said"),
    [
        (CallableReward(raises), AS_TEXT, rf"raises failed: ZeroDivisionError: .* {place(raises)}; it was called on"),
        (within(raises), AS_TEXT, rf"raises failed: ZeroDivisionError: .* {place(raises)}"),
        (
            CallableReward(wants_text),
            IN_CHAT,
            rf"has no attribute 'strip' {place(wants_text)}: .*give reward.format=text",
        ),
        (CallableReward(silent_on_messages), IN_CHAT, r"gives the same reward to .*: give reward.format=text"),
        (CallableReward(lambda completions: None), AS_TEXT, "returned a NoneType: return one number per completion"),
        (CallableReward(lambda completions: [1.0]), AS_TEXT, "returned 1 rewards for 3 completions"),
        (CallableReward(lambda completions: [float("nan")] * 3), AS_TEXT, "returned nan: not a finite number"),
        (CallableReward(lambda completions: ["good"] * 3), IN_CHAT, "returned 'good': not a finite number"),
        (Raises(), AS_TEXT, rf"reward Raises failed: KeyError: '7' {place(Raises.score)}"),
        (
            CallableReward(lambda completions: [1e300] * 3),
            AS_TEXT,
            r"reward of 1e\+300: not a finite number in float32",
        ),
        (Short(), AS_TEXT, "reward Short returned 1 verdicts for 3 completions"),
    ],
)
def test_a_faulty_reward_is_one_line(reward, prompt, said):
    with pytest.raises(ConfigError, match=said) as caught:
        try_reward(reward, prompt, ENCODE, TrainerState())
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("reward", "prompt"),
    [
        (CallableReward(of_level), IN_CHAT),
        (CallableReward(wants_text, format="text"), IN_CHAT),
        (CallableReward(silent_on_messages, format="messages"), IN_CHAT),
        (within(wants_text, format="text"), IN_CHAT),
        (CallableReward(lambda completions: [None, 0.0, 0.0]), IN_CHAT),
    ],
)
def test_a_sound_reward_is_left_alone_and_the_random_numbers_of_the_run_too(reward, prompt):
    random.seed(1)
    try_reward(reward, prompt, ENCODE, TrainerState())
    drawn, _ = random.random(), random.seed(1)
    assert drawn == random.random()


def test_a_judge_is_called_once_on_three_completions():
    calls = []

    def judge(completions):
        calls.append(len(completions))
        return [float(len(messages[0]["content"])) for messages in completions]

    try_reward(CallableReward(judge), IN_CHAT, ENCODE, TrainerState())
    assert calls == [3]


def test_the_trial_gives_the_verdicts_of_a_step():
    def judge(completions, answer):
        return [(float(text == gold), text or None) for text, gold in zip(completions, answer, strict=True)]

    for reward in (CallableReward(judge), WeightedRewards({"own": judge})):
        found = try_reward(reward, AS_TEXT, ENCODE, TrainerState())
        assert [(verdict.reward, verdict.extracted) for verdict in found] == [(1, "7"), (0, "-31415"), (0, None)]
        assert weak_signal(found, counts_answers=True) is None
    ours = try_reward(MathVerifyReward(), AS_TEXT, ENCODE, TrainerState())
    assert ours == MathVerifyReward().score([r"\boxed{7}", r"\boxed{-31415}", ""], ["7"] * 3)


@pytest.mark.parametrize(
    ("rewards", "said"),
    [([2.0, 2.0, 2.0], "reward is 2 for each of"), ([2**24, 2**24 + 1, 0], "same in float32"), ([1, 0, 0], None)],
)
def test_a_signal_that_is_none_is_said(rewards, said):
    found = weak_signal([Verdict(reward=float(reward), status="incorrect") for reward in rewards], counts_answers=False)
    assert (said in found) if said else found is None


def test_verdicts_without_an_answer_are_named_where_answers_are_counted():
    silent = [Verdict(reward=reward, status="incorrect") for reward in (1.0, 0.0, 0.0)]
    assert "states none of three made-up completions" in str(weak_signal(silent, counts_answers=True))
    assert weak_signal(silent, counts_answers=False) is None

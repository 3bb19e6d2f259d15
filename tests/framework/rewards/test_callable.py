import asyncio
import dataclasses
import functools
import math

import pytest

from apo_lightning.contracts import Samples, TrainerState
from apo_lightning.errors import ConfigError
from apo_lightning.rewards import CallableReward
from apo_lightning.types import Prompt


def exact(completions, answer, **kwargs):
    return [float(completion == gold) for completion, gold in zip(completions, answer, strict=True)]


def statuses(function, num_completions: int = 2) -> list[str]:
    verdicts = CallableReward(function).score(["a"] * num_completions, ["a"] * num_completions)
    assert all(verdict.reward == 0.0 for verdict in verdicts if verdict.status not in ("correct", "incorrect"))
    return [verdict.status for verdict in verdicts]


def test_a_function_receives_only_what_it_names():
    verdicts = CallableReward(exact).score(["a", "b"], ["a", "a"])
    assert [(verdict.reward, verdict.status) for verdict in verdicts] == [(1.0, "correct"), (0.0, "incorrect")]
    assert CallableReward(lambda completions: 1 / 0).score_samples(samples()) == []  # a rank without a batch

    def named(solution, completions):
        assert solution == ["gold"]
        return [0.5]

    assert CallableReward(named, correct_threshold=0.5).score(["a"], ["gold"])[0].status == "correct"
    assert CallableReward(named).score(["a"], ["gold"])[0].reward == 0.5
    assert CallableReward(named).score(["a"], ["gold"])[0].status == "incorrect"


def samples(*texts, columns=None, messages=None, answer="a", **fields):
    prompts = [
        Prompt(id=f"p{i}", problem="?", answer=answer, text="Q: ?", token_ids=(1,), columns=own, messages=messages)
        for i, own in enumerate(columns or [{}] * len(texts))
    ]
    ids = tuple((7, i) for i in range(len(texts)))
    return Samples(prompts=prompts, texts=[f"<s>{text}" for text in texts], plain_texts=texts, token_ids=ids, **fields)


def test_a_function_that_takes_everything_gets_trls_arguments():
    given = {}

    def function(completions, **kwargs):
        given.update(kwargs, completions=completions)
        return [1.0, 0.0]

    state = TrainerState(global_step=4, max_steps=8, epoch=0.5)
    columns = [{"level": 3, "tags": [" a "]}, {"level": None}]
    CallableReward(function).score_samples(samples("x", "y", columns=columns, state=state))
    assert callable(given.pop("log_extra"))
    assert callable(given.pop("log_metric"))
    assert given == {
        "prompts": ["Q: ?", "Q: ?"],
        "completions": ["x", "y"],
        "completion_ids": [[7, 0], [7, 1]],
        "trainer_state": state,
        "level": [3, None],
        "tags": [[" a "], None],
        "answer": ["a", "a"],
        "solution": ["a", "a"],
    }
    with pytest.raises(dataclasses.FrozenInstanceError):
        state.global_step = 5


def test_a_column_of_the_data_set_hides_the_parsed_answer():
    def function(completions, answer, solution):
        assert answer == ["1 + 1 = 2\n#### 2"]
        assert solution == ["2"]
        return [1.0]

    columns = [{"answer": "1 + 1 = 2\n#### 2"}]
    assert CallableReward(function).score_samples(samples("2", columns=columns, answer="2"))[0].status == "correct"


@pytest.mark.parametrize(
    ("format", "has_template", "as_messages"),
    [("auto", True, True), ("auto", False, False), ("text", True, False), ("messages", False, True)],
)
def test_prompts_and_completions_are_messages_where_a_chat_template_is_used(format, has_template, as_messages):
    def function(prompts, completions):
        seen.append((prompts[0], completions[0]))
        return [1.0]

    seen, messages = [], ({"role": "system", "content": "s"}, {"role": "user", "content": "?"})
    given = samples("x", messages=messages if has_template else None)
    CallableReward(function, format=format).score_samples(given)
    prompt = [*messages] if has_template else [{"role": "user", "content": "Q: ?"}]
    reply = [{"role": "assistant", "content": "x"}]
    assert seen == [(prompt, reply) if as_messages else ("Q: ?", "x")]


def test_log_extra_and_log_metric_reach_the_verdicts_and_the_run():
    def function(completions, log_extra, log_metric):
        log_extra("length", [len(text) for text in completions])
        log_extra("kind", [int, None])
        log_metric("longest", 2)
        return [1.0, None]

    given = samples("x", "yy")
    verdicts = CallableReward(function).score_samples(given)
    assert [verdict.extra for verdict in verdicts] == [
        {"length": 1, "kind": "<class 'int'>"},
        {"length": 2, "kind": None},
    ]
    assert given.metrics == {"longest": [2.0]}


def test_classes_partials_and_coroutine_functions_are_called():
    class Threshold:
        __name__ = "threshold"

        def __call__(self, completions, limit=1):
            return [float(len(text) > limit) for text in completions]

    class Later(Threshold):
        async def __call__(self, completions, **kwargs):
            await asyncio.sleep(0)
            return [1.0 for _ in completions]

    async def later(completions):
        return [1.0 for _ in completions]

    # A column must not replace what the settings give.
    bound = functools.partial(Threshold().__call__, limit=0)
    for function, expected in ((Threshold(), 0.0), (Later(), 1.0), (later, 1.0), (bound, 1.0)):
        verdict = CallableReward(function).score_samples(samples("x", columns=[{"limit": 5}] * (function is bound)))
        assert verdict[0].reward == expected


def test_what_a_function_cannot_be_given_is_refused_before_the_run():
    prompts = samples("x", columns=[{"level": 1}]).prompts
    CallableReward(lambda completions, level: [1.0]).check_prompts(prompts)
    CallableReward(lambda completions, entry=None, *args, **kwargs: [1.0]).check_prompts(prompts)
    with pytest.raises(ConfigError, match="needs entry, which problem 'p0' of  does not have: its columns are level"):
        CallableReward(lambda completions, entry: [1.0]).check_prompts(prompts)
    makes_one = functools.partial(lambda size: exact, size=3)
    with pytest.raises(ConfigError, match=r"takes neither completions nor a column of problem 'p0'.*: false"):
        CallableReward(makes_one).check_prompts(prompts)
    with pytest.raises(ConfigError, match="'prompts', which is an argument of rewards"):
        CallableReward(exact).check_prompts(samples("x", columns=[{"prompts": 1}]).prompts)
    with pytest.raises(ConfigError, match="environments"):
        CallableReward(lambda completions, environments=None: [1.0])
    with pytest.raises(ConfigError, match="_partial_"):
        CallableReward("my_package.my_reward")
    with pytest.raises(ConfigError, match=r"reward.format is 'chat': choose auto, text or messages"):
        CallableReward(exact, format="chat")


def test_none_means_not_judged_and_has_no_reward():
    verdicts = CallableReward(lambda completions: [None, 0.0, 1.0]).score(["a"] * 3, ["a"] * 3)
    assert [verdict.is_scored for verdict in verdicts] == [False, True, True]
    assert [verdict.status for verdict in verdicts] == ["unparsed", "incorrect", "correct"]


@pytest.mark.parametrize(
    "function",
    [
        lambda completions: 1 / 0,
        lambda completions: [1.0],
        lambda completions: [1.0] * 3,
        lambda completions: 1.0,
        lambda completions: None,
        lambda completions: "11",
        lambda completions: {0: 1.0, 1: 1.0},
        lambda completions, prompts: [1.0, 1.0],  # `score` has no prompts
    ],
)
def test_a_function_that_fails_makes_every_verdict_an_error_and_says_why(function, caplog: pytest.LogCaptureFixture):
    assert statuses(function) == ["error", "error"]
    assert "failed: " in caplog.text or "returned " in caplog.text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "high", "1.0", [1.0]])
def test_an_entry_that_is_no_finite_number_is_an_error_of_its_own(value, caplog: pytest.LogCaptureFixture):
    assert statuses(lambda completions: [value, 1.0]) == ["error", "correct"]
    assert "not a finite number" in caplog.text


def test_a_subclass_that_changes_only_what_no_run_calls_is_refused():
    with pytest.raises(TypeError, match="Own defines score, and a run calls score_samples"):
        type("Own", (CallableReward,), {"score": lambda self, completions, answers: []})
    assert type("Own", (CallableReward,), {"score_samples": lambda self, samples: []})

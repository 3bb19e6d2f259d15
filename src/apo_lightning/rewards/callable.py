"""A user's reward function with TRL's signature."""

import asyncio
import inspect
import logging
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apo_lightning.contracts import Reward, Samples
from apo_lightning.errors import ConfigError, Preempted, failure
from apo_lightning.types import Prompt, Verdict

GOLD = ("answer", "solution")
RUN = ("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric")
LOGGER = logging.getLogger(__name__)


class ReadsSamples(Reward):
    """A reward whose `score` is its `score_samples` without a data set; subclasses change the latter.

    Raises:
        TypeError: when a subclass is defined that changes `score` alone, which no run would call.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "score" in cls.__dict__ and "score_samples" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} defines score, and a run calls score_samples: define that one")


class CallableReward(ReadsSamples):
    """A reward from `function(completions=[…], **others) -> list[float | None]`, TRL's signature.

    The function is called once per step and rank with keyword arguments; a list has one entry per completion, and a
    prompt's completions are adjacent:

    | argument | value |
    |---|---|
    | `prompts`, `completions` | text, or lists of messages (see `format`), without special tokens |
    | `completion_ids` | token ids, the stop token included |
    | every column of the data set | its values under its own name, untouched; None where a row lacks it |
    | `answer`, `solution` | the parsed gold answer, unless the data set has a column of that name |
    | `trainer_state` | a `TrainerState`: `global_step`, `max_steps`, `epoch` |
    | `log_extra(column, values)` | adds a column to the rollout file |
    | `log_metric(name, value)` | logs `reward/metric/<name>`, the mean over calls and ranks |

    It gets the arguments that its signature names, or all of them if it takes `**kwargs`. A coroutine function is run
    to its end. `environments` is refused: a prompt has one turn.

    An entry may be a pair `(reward, answer)`: the answer that the function has judged, or None. Majority votes and
    estimators that count equal answers read it.

    An entry None means that the function does not apply (`unparsed`): the completion is left out of its group's mean
    and std, with advantage 0, and stays in the denominators of the loss. A function that raises, or returns another
    number of rewards, or no list, makes every verdict of the call an `error`; an entry that is not a finite number
    makes its own verdict one. Both are logged.

    Source: TRL 1.16, `GRPOTrainer._calculate_rewards`. Departure: TRL has no `answer` or `solution` of its own.

    Args:
        function: a callable as above.
        correct_threshold: a completion with at least this reward is `correct` for pass@k, for NSR's advantages and
            for the error-only terms.
        format: "text", "messages", or "auto": messages where the policy reads a chat template.

    Raises:
        ConfigError: `function` is not callable or takes `environments`, or the format is unknown.

    Example:
        >>> def brevity(completions, **kwargs):
        ...     return [1.0 / len(completion) for completion in completions]
        >>> CallableReward(brevity).score(["4", "four"], ["4", "4"])  # doctest: +NORMALIZE_WHITESPACE
        [Verdict(reward=1.0, status='correct', extracted=None),
         Verdict(reward=0.25, status='incorrect', extracted=None)]
    """

    def __init__(self, function: Any, correct_threshold: float = 1.0, format: str = "auto") -> None:
        if format not in ("auto", "text", "messages"):
            raise ConfigError(f"reward.format is {format!r}: choose auto, text or messages")
        self.function = function
        self.correct_threshold = correct_threshold
        self.format = format
        self.parameters = _parameters(function)
        own = getattr(function, "func", function)
        own = own if hasattr(own, "__qualname__") else type(own)
        self.name = f"{own.__module__}.{own.__qualname__}"
        """The name of the function, as its `_target_`."""
        self.states_answers = False
        """Whether the function has returned a pair; known once it was called."""

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order, for a function that reads no prompts, columns or token ids."""
        prompts = [Prompt(id="", problem="", answer=answer, text="", token_ids=()) for answer in answers]
        samples = Samples(prompts=prompts, texts=completions, plain_texts=completions, token_ids=())
        return self._verdicts(samples, absent=("prompts", "completion_ids"))

    def score_samples(self, samples: Samples) -> list[Verdict]:
        """One verdict per completion, in order."""
        return self._verdicts(samples)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise `ConfigError` where the function cannot be called: a column is missing, or its name is taken."""
        named = (p for p in self.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL))
        required = {p.name for p in named if p.default is p.empty}
        for prompt in prompts:
            where = f"problem '{prompt.id}' of {prompt.source}"
            if missing := required - {*RUN, *GOLD, *prompt.columns}:
                raise ConfigError(
                    f"reward.function {self.name} needs {', '.join(sorted(missing))}, which {where} does not "
                    f"have: its columns are {', '.join(prompt.columns) or 'none'}"
                )
            if not any(map(self._takes, (*RUN, *GOLD, *prompt.columns))):
                raise ConfigError(
                    f"reward.function {self.name} takes neither completions nor a column of {where}: if it makes "
                    "a reward function, give it _partial_: false"
                )
            if taken := {*RUN, "environments"} & prompt.columns.keys():
                raise ConfigError(f"{where} has a column {min(taken)!r}, which is an argument of rewards: rename it")

    def gets_messages(self, samples: Samples) -> bool:
        """Whether the function is given lists of messages, and not text."""
        has_template = any(prompt.messages is not None for prompt in samples.prompts)
        return has_template if self.format == "auto" else self.format == "messages"

    def _verdicts(self, samples: Samples, absent: Sequence[str] = ()) -> list[Verdict]:
        if not samples.texts:  # a rank without a batch
            return []
        extra: list[dict[str, Any]] = [{} for _ in samples.texts]
        try:
            available = self._arguments(samples, extra).items()
            given = {name: value for name, value in available if name not in absent and self._takes(name)}
            returned = self._call(given)
            is_list = isinstance(returned, Iterable) and not isinstance(returned, str | bytes | Mapping | Set)
            rewards = list(returned) if is_list else None
        except (KeyboardInterrupt, Preempted):
            raise
        # What a user's function raises, sys.exit included, must become verdicts that are counted, not a lost step.
        except BaseException as error:
            return self._all_errors(f"failed: {failure(error, self.function)}", extra, error)
        if rewards is None:
            return self._all_errors(f"returned a {type(returned).__name__}: return one number per completion", extra)
        if len(rewards) != len(extra):
            return self._all_errors(f"returned {len(rewards)} rewards for {len(extra)} completions", extra)
        return [self._verdict(*pair) for pair in zip(rewards, extra, strict=True)]

    def _all_errors(self, fault: str, extra: Sequence[Any], error: BaseException | None = None) -> list[Verdict]:
        LOGGER.warning("reward %s %s", self.name, fault, exc_info=error)
        reason = f"reward {self.name} {fault}"
        return [Verdict(reward=0.0, status="error", reason=reason) for _ in extra]

    def _takes(self, argument: str) -> bool:
        """Whether the signature has the argument, and the settings do not give it."""
        if argument in getattr(self.function, "keywords", ()):
            return False
        takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())
        return takes_all or argument in self.parameters

    def _call(self, given: Mapping[str, Any]) -> Any:
        if not any(map(inspect.iscoroutinefunction, (self.function, type(self.function).__call__))):
            return self.function(**given)
        with ThreadPoolExecutor(1) as thread:  # a notebook's own thread has a running event loop
            return thread.submit(lambda: asyncio.run(self.function(**given))).result()

    def _arguments(self, samples: Samples, extra: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """All arguments by name; `log_extra` fills `extra`."""

        def log_extra(column: str, values: Sequence[Any]) -> None:
            for own, value in zip(extra, values, strict=True):
                own[column] = value if isinstance(value, str | int | float | None) else str(value)

        def log_metric(name: str, value: Any) -> None:
            samples.metrics.setdefault(name, []).append(float(value))

        prompts, texts = samples.prompts, samples.plain_texts
        columns = dict.fromkeys(column for prompt in prompts for column in prompt.columns)
        as_messages = self.gets_messages(samples)
        return {
            **dict.fromkeys(GOLD, samples.answers),
            **{column: [prompt.columns.get(column) for prompt in prompts] for column in columns},
            "prompts": [_messages(prompt) if as_messages else prompt.text for prompt in prompts],
            "completions": [[{"role": "assistant", "content": text}] if as_messages else text for text in texts],
            "completion_ids": [list(ids) for ids in samples.token_ids],
            "trainer_state": samples.state,
            "log_extra": log_extra,
            "log_metric": log_metric,
        }

    def _verdict(self, reward: Any, extra: Mapping[str, Any]) -> Verdict:
        is_pair = isinstance(reward, tuple) and len(reward) == 2
        self.states_answers |= is_pair
        reward, answer = reward if is_pair else (reward, None)
        answer = None if answer is None else str(answer)
        if reward is None:
            return Verdict(reward=0.0, status="unparsed", extracted=answer, extra=extra, is_scored=False)
        try:
            value = math.nan if isinstance(reward, str | bytes) else float(reward)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            LOGGER.warning("reward %s returned %.200r: not a finite number", self.name, reward)
            reason = f"reward {self.name} returned {reward!r:.200}: not a finite number"
            return Verdict(reward=0.0, status="error", extracted=answer, extra=extra, reason=reason)
        status = "correct" if value >= self.correct_threshold else "incorrect"
        return Verdict(reward=value, status=status, extracted=answer, extra=extra)


def _parameters(function: Any) -> Mapping[str, inspect.Parameter]:
    if not callable(function):
        raise ConfigError(f"reward.function is {function!r}, not callable: give it a _target_ and _partial_: true")
    parameters = inspect.signature(function).parameters
    if "environments" in parameters:
        raise ConfigError(
            f"reward.function {function!r} takes environments, which runs here do not have: a prompt has one turn"
        )
    return parameters


def _messages(prompt: Prompt) -> list[dict[str, str]]:
    return [dict(message) for message in prompt.messages or ({"role": "user", "content": prompt.text},)]

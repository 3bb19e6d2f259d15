"""A user's reward function with TRL's signature."""

import inspect
import logging
import math
from collections.abc import Sequence
from typing import Any

from apo_lightning.errors import ConfigError
from apo_lightning.rewards.reward import Reward
from apo_lightning.types import Verdict

AVAILABLE = ("completions", "answer", "solution")
_logger = logging.getLogger(__name__)


class CallableReward(Reward):
    """A reward from `function(completions=[…], **columns) -> list[float | None]`, TRL's signature.

    The function is called once per step with keyword arguments, each a list with one entry per completion:
    `completions` (strings), `answer` and `solution` (both are the gold answer). It gets the arguments that its
    signature names, or all of them if it takes `**kwargs`.

    Departure: TRL also passes `prompts`, `completion_ids` and every data-set column, and chat completions as lists
    of messages; a function that needs more than text and gold answer is refused.

    An entry None means that the function does not apply (`unparsed`). A function that raises makes every verdict of
    the call an `error`; an entry that is not a finite number makes its own verdict one. Both are logged.

    Args:
        function: a callable as above.
        correct_threshold: a completion with at least this reward is `correct` for pass@k, for NSR's advantages and
            for the error-only terms.

    Raises:
        ConfigError: `function` is not callable, or requires an argument that is not available.

    Example:
        >>> def brevity(completions, **kwargs):
        ...     return [1.0 / len(completion) for completion in completions]
        >>> CallableReward(brevity).score(["4", "four"], ["4", "4"])  # doctest: +NORMALIZE_WHITESPACE
        [Verdict(reward=1.0, status='correct', extracted=None),
         Verdict(reward=0.25, status='incorrect', extracted=None)]
    """

    def __init__(self, function: Any, correct_threshold: float = 1.0):
        self.function = function
        self.correct_threshold = correct_threshold
        self._accepted = _accepted_arguments(function)

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order."""
        available = {"completions": list(completions), "answer": list(answers), "solution": list(answers)}
        try:
            rewards = list(self.function(**{name: available[name] for name in self._accepted}))
            if len(rewards) != len(completions):
                raise ValueError(f"returned {len(rewards)} rewards for {len(completions)} completions")
        # An exception in a user's function must become verdicts that are counted, not a lost step.
        except Exception:
            _logger.warning("the reward function %r failed", self.function, exc_info=True)
            return [Verdict(reward=0.0, status="error") for _ in completions]
        return [self._verdict(reward) for reward in rewards]

    def _verdict(self, reward: Any) -> Verdict:
        if reward is None:
            return Verdict(reward=0.0, status="unparsed")
        try:
            value = float(reward)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            _logger.warning("the reward function %r returned %.200r: not a finite number", self.function, reward)
            return Verdict(reward=0.0, status="error")
        return Verdict(reward=value, status="correct" if value >= self.correct_threshold else "incorrect")


def _accepted_arguments(function: Any) -> tuple[str, ...]:
    """The available arguments that the function takes."""
    if not callable(function):
        raise ConfigError(f"reward.function is {function!r}, not callable: give it a _target_ and _partial_: true")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"reward.function {function!r} is asynchronous: wrap it in a function that awaits it")
    signature = inspect.signature(function)
    takes_all = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    accepted = tuple(name for name in AVAILABLE if takes_all or name in signature.parameters)
    try:
        signature.bind(**dict.fromkeys(accepted))
    except TypeError as error:
        raise ConfigError(
            f"reward.function {function!r}: {error}; a reward is given {', '.join(AVAILABLE)} and nothing else"
        ) from error
    return accepted

"""The interface of a reward."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from apo_lightning.types import Verdict


@runtime_checkable
class Reward(Protocol):
    """Scores completions against gold answers. An instance may keep processes open between calls.

    A subclass inherits a `check_answers` that accepts all answers and a `close` that does nothing.

    A class may set `SCORES_WHILE_GENERATING = True`. Its `score` is then called several times a step, from another
    thread, with the completions that are finished, in any order; so a verdict must depend on its own completion and
    answer alone. All others are called once a step.
    """

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order. Never raises for the content of a completion."""
        ...

    def check_answers(self, answers: Sequence[str]) -> None:
        """Check the gold answers; called once, before any model is loaded.

        Raises:
            ConfigError: this reward cannot judge a gold answer; the message names the first one and the remedy.
        """

    def close(self) -> None:
        """End the processes that the reward has started. May be called twice."""


def is_scored_while_generating(reward: Reward) -> bool:
    """True for a reward that may be called while completions are still being sampled (see `Reward`)."""
    return getattr(reward, "SCORES_WHILE_GENERATING", False)

"""The interface between the trainer and a reward."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from apo_lightning.types import Verdict


@runtime_checkable
class Reward(Protocol):
    """Judges completions against gold answers. An instance may keep processes open between calls.

    A class may say `SCORES_WHILE_GENERATING = True`. Its `score` is then called several times a step, from another
    thread, with those completions that are finished, in any order; so a verdict must depend on its own completion and
    answer alone. It is for rewards that take longer than a thread costs; all others are called once a step.
    """

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order.

        Never raises for what a *completion* says: an answer that cannot be judged gets a status that is counted.

        Args:
            completions: what the policy wrote, without the prompt and without the prefill.
            answers: the gold answer of each completion.
        """
        ...

    def check_answers(self, answers: Sequence[str]) -> None:
        """Refuse a data set this reward cannot judge; called once, before any model is loaded.

        Raises:
            ConfigError: names the first such gold answer and the remedy.
        """
        ...

    def close(self) -> None:
        """End the processes that the reward has started. May be called twice."""
        ...


def is_scored_while_generating(reward: Reward) -> bool:
    """True for a reward whose class allows it.

    Example:
        >>> from apo_lightning.rewards import MathVerifyReward, NumericReward
        >>> is_scored_while_generating(MathVerifyReward()), is_scored_while_generating(NumericReward())
        (True, False)
    """
    return getattr(reward, "SCORES_WHILE_GENERATING", False)

"""What a puzzle has to say of itself: its problems, its valid answers, and how its demonstrations are drawn."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAnswer:
    """One answer out of the list of a problem."""

    text: str
    """The completion, without the end of sequence."""
    strategy: str
    """The way that leads to it; several answers may share one."""
    is_valid: bool
    """True where the verdict on it is `correct`."""


@runtime_checkable
class Puzzle(Protocol):
    """A family of problems. Everything about it is a function of its fields, so two processes agree on it.

    A policy's probability of being right on a problem is the sum of its probabilities of the valid listed answers, and
    pass@k follows without sampling.
    """

    @property
    def name(self) -> str:
        """The name of the data set."""
        ...

    @property
    def strategies(self) -> Sequence[str]:
        """All strategies, those most common in demonstrations first."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """Characters of the longest problem."""
        ...

    @property
    def max_completion_tokens(self) -> int:
        """Characters of the longest answer, and its end: a completion that is cut off there is too long to be one."""
        ...

    def problems(self, count: int, seed: int, *, held_out: bool) -> list[str]:
        """Draw distinct problems with at least one valid answer from one side of the split.

        Args:
            count: of problems.
            seed: of the draw.
            held_out: True: from the side that neither demonstrations nor RL see.

        Raises:
            ConfigError: there are fewer problems on that side.
        """
        ...

    def demonstration(self, random: Random) -> tuple[str, str]:
        """Draw a problem from the training side and an answer as the base model is to give it."""
        ...

    def answers(self, problem: str) -> list[ListedAnswer]:
        """List the answers of a problem: every valid one, and those that say how a strategy is carried out."""
        ...

    def is_problem(self, text: str) -> bool:
        """Whether a text states a problem of this puzzle, solvable or not."""
        ...

    def is_correct(self, problem: str, answer: str) -> bool:
        """Judge the text of a completion, as `completion_text` gives it: right iff it is a valid listed answer."""
        ...

    def kinds(self, answer: str) -> list[str]:
        """Name what each token of a listed answer decides, its end of sequence included."""
        ...

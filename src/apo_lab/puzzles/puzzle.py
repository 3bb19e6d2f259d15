"""The interface of a puzzle: its problems, its valid answers and its demonstrations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable

from apo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedAnswer:
    """One listed answer of a problem."""

    text: str
    """The completion, without the end of sequence."""
    strategy: str
    """The strategy that it follows; several answers may share one."""
    is_valid: bool
    """Whether its verdict is `correct`."""


@runtime_checkable
class Puzzle(Protocol):
    """A family of problems that is a function of its fields, so that all processes agree on it.

    A policy's probability of being right is the sum of its probabilities of the valid listed answers; that gives
    pass@k without sampling.
    """

    @property
    def name(self) -> str:
        """The name of the data set."""
        ...

    @property
    def strategies(self) -> Sequence[str]:
        """All strategies; those most common in demonstrations come first."""
        ...

    @property
    def decision(self) -> str:
        """The kind of token (see `kinds`) whose first one in an answer is its first decision."""
        ...

    @property
    def max_prompt_tokens(self) -> int:
        """Length of the longest problem [characters]."""
        ...

    @property
    def max_completion_tokens(self) -> int:
        """Length of the longest answer with its end [characters]; a completion that is cut off there is no answer."""
        ...

    def problems(self, count: int, seed: int, *, held_out: bool) -> list[str]:
        """Draw distinct problems with at least one valid answer from one side of the split.

        Neither demonstrations nor RL use the held-out side. Raises `ConfigError` where a side has fewer problems.
        """
        ...

    def demonstration(self, random: Random) -> tuple[str, str]:
        """Draw a problem from the training side, and the answer that the base model is trained on."""
        ...

    def answers(self, problem: str) -> list[ListedAnswer]:
        """List the answers of a problem: all valid ones, and those that carry out a strategy correctly in vain."""
        ...

    def is_problem(self, text: str) -> bool:
        """Whether a text states a problem of this puzzle, solvable or not."""
        ...

    def is_correct(self, problem: str, answer: str) -> bool:
        """Whether a completion's text is a valid listed answer."""
        ...

    def kinds(self, answer: str) -> list[str]:
        """Name what each token of a listed answer decides, including its end of sequence."""
        ...


def drawn(name: str, sides: Mapping[bool, Sequence[str]], count: int, seed: int, *, held_out: bool) -> list[str]:
    """`Puzzle.problems` of a puzzle whose problems are all listed: `sides` has those that are held out under True."""
    available = sides[held_out]
    if count > len(available):
        side = "held out" if held_out else "trained on"
        raise ConfigError(f"{count} problems of {name}: {len(available)} are {side}, ask for fewer")
    return Random(f"{name}/{seed}/{held_out}").sample(available, count)

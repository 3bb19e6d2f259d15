"""Countdown, evaluated from left to right: reach a target with a few numbers and operators."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Annotated

import numpy as np

from apo_lab.puzzles.puzzle import ListedAnswer, drawn
from apo_lightning.common.hashing import hash64
from apo_lightning.common.ranges import Checked, Within

OPERATORS = "+-*"
TARGETS = range(10, 100)


@dataclass(frozen=True, kw_only=True)
class Countdown(Checked):
    """`13579=42:` asks for all numbers, each once, joined by + − * and evaluated from left to right: `9*5-7+3+1`.

    There is no precedence: 9*5-7+3+1 = ((((9·5)−7)+3)+1). A strategy is a sequence of operators. Problems are split by
    their numbers, so no held-out problem has the numbers of a training problem.

    Attributes:
        num_numbers: numbers of a problem, each from 1 to 9.
        min_solutions: problems with fewer solutions are left out.
        min_strategies: problems solved by fewer sequences of operators are left out.

    Raises:
        ConfigError: fewer than two numbers, or more than five, whose solutions are too many to list.

    Example:
        >>> countdown = Countdown(num_numbers=5)
        >>> countdown.is_correct("13579=42:", "9*5-7+3+1"), countdown.is_correct("13579=42:", "1+3+5+7*9")
        (True, False)
        >>> countdown.kinds("9*5-7+3+1")[:3], countdown.kinds("9*5-7+3+1")[-1]
        (['number', 'operator', 'number'], 'end')
    """

    num_numbers: Annotated[int, Within("[2, 5]")] = 4
    min_solutions: int = 4
    min_strategies: int = 2

    name = "countdown"
    decision = "operator"

    @property
    def strategies(self) -> Sequence[str]:
        """All sequences of operators."""
        return operator_sequences(self.num_numbers)

    @property
    def max_prompt_tokens(self) -> int:
        """Numbers, "=", a target of two digits and ":"."""
        return self.num_numbers + 4

    @property
    def max_completion_tokens(self) -> int:
        """Numbers, operators and the end."""
        return 2 * self.num_numbers

    def problems(self, count: int, seed: int, *, held_out: bool) -> list[str]:
        """See `Puzzle.problems`; a fifth of all sets of numbers is held out."""
        return drawn(self.name, self._sides(), count, seed, held_out=held_out)

    def demonstration(self, random: Random) -> tuple[str, str]:
        """A solution, drawn uniformly; see `Puzzle.demonstration`."""
        problem = random.choice(self._sides()[False])
        return problem, random.choice(_solutions(_numbers(problem))[_target(problem)])

    def answers(self, problem: str) -> list[ListedAnswer]:
        """All solutions; see `Puzzle.answers`."""
        texts = _solutions(_numbers(problem)).get(_target(problem), ())
        return [ListedAnswer(text=text, strategy=text[1::2], is_valid=True) for text in texts]

    def is_problem(self, text: str) -> bool:
        """See `Puzzle.is_problem`."""
        return re.fullmatch(rf"[1-9]{{{self.num_numbers}}}=[1-9][0-9]:", text) is not None

    def is_correct(self, problem: str, answer: str) -> bool:
        """See `Puzzle.is_correct`."""
        return answer in _solutions(_numbers(problem)).get(_target(problem), ())

    def kinds(self, answer: str) -> list[str]:
        """See `Puzzle.kinds`."""
        return ["number" if place % 2 == 0 else "operator" for place in range(len(answer))] + ["end"]

    def _sides(self) -> dict[bool, list[str]]:
        return _sides(self.num_numbers, self.min_solutions, self.min_strategies)


def operator_sequences(num_numbers: int) -> tuple[str, ...]:
    """All sequences of operators between so many numbers."""
    return tuple("".join(sequence) for sequence in itertools.product(OPERATORS, repeat=num_numbers - 1))


def _numbers(problem: str) -> str:
    return problem.partition("=")[0]


def _target(problem: str) -> int:
    return int(problem.partition("=")[2][:-1])


@cache
def _sides(num_numbers: int, min_solutions: int, min_strategies: int) -> dict[bool, list[str]]:
    """Is held out → the sorted problems."""
    sides: dict[bool, list[str]] = {False: [], True: []}
    multisets = sorted(
        ("".join(map(str, numbers)) for numbers in itertools.combinations_with_replacement(range(1, 10), num_numbers)),
        key=lambda numbers: hash64(f"split/{numbers}"),
    )
    for place, numbers in enumerate(multisets):
        values = _values(_orders(numbers))
        is_held_out = place < len(multisets) // 5
        for target in TARGETS:
            reached = values == target
            if reached.sum() >= min_solutions and reached.any(axis=0).sum() >= min_strategies:
                sides[is_held_out].append(f"{numbers}={target}:")
    return {side: sorted(problems) for side, problems in sides.items()}


@cache
def _solutions(numbers: str) -> dict[int, list[str]]:
    """Target → every distinct expression over the numbers."""
    orders, sequences = _orders(numbers), operator_sequences(len(numbers))
    values = _values(orders)
    found: dict[int, list[str]] = {}
    for order, operators in np.argwhere((values >= TARGETS.start) & (values < TARGETS.stop)):
        digits = orders[order]
        text = digits[0] + "".join(map("".join, zip(sequences[operators], digits[1:], strict=True)))
        found.setdefault(int(values[order, operators]), []).append(text)
    return found


def _orders(numbers: str) -> list[str]:
    return sorted({"".join(order) for order in itertools.permutations(numbers)})


def _values(orders: Sequence[str]) -> np.ndarray:
    """The value of each order (row) under each sequence of operators (column)."""
    numbers = np.array([[int(digit) for digit in order] for order in orders])
    sequences = operator_sequences(numbers.shape[1])
    values = np.repeat(numbers[:, :1], len(sequences), axis=1)
    for place in range(1, numbers.shape[1]):
        kinds = np.array([OPERATORS.index(sequence[place - 1]) for sequence in sequences])
        number = numbers[:, place : place + 1]
        values = np.select([kinds == 0, kinds == 1], [values + number, values - number], values * number)
    return values

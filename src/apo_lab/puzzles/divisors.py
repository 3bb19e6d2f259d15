"""Divisors of a number: short answers that a small language model can sample but not compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd
from random import Random

from apo_lab.puzzles.puzzle import ListedAnswer, drawn
from apo_lightning.common.hashing import hash64
from apo_lightning.errors import ConfigError

NUMBERS = range(1_000, 10_000)
LAST_DIGITS = 10
"""Problems have no factor in common with it, so that the last digit gives no divisor away."""
HELD_OUT_SHARE = 5
"""One problem in so many is held out."""


@dataclass(frozen=True, kw_only=True)
class Divisors:
    """`2541` asks for a divisor other than 1 and the number itself, in decimal digits without spaces: `3`, `231`.

    The numbers have four digits, are odd and do not end in 5. Each divisor is a strategy. A policy that always answers
    3 is right on the multiples of 3 and loses all other numbers.

    Attributes:
        max_smallest: numbers whose smallest divisor is larger are left out.

    Raises:
        ConfigError: `max_smallest` is below 3, so that no number is left.

    Example:
        >>> divisors = Divisors()
        >>> [answer.text for answer in divisors.answers("2541")]
        ['3', '7', '11', '21', '33', '77', '121', '231', '363', '847']
        >>> divisors.is_correct("2541", "3"), divisors.is_correct("2541", "2541"), divisors.is_correct("2541", " 3")
        (True, False, False)
    """

    max_smallest: int = 13

    name = "divisors"
    decision = "digit"
    max_prompt_tokens = 4
    max_completion_tokens = 5

    def __post_init__(self) -> None:
        if self.max_smallest < 3:
            raise ConfigError(f"max_smallest is {self.max_smallest}: the smallest divisor of a problem is 3 or more")

    @property
    def strategies(self) -> Sequence[str]:
        """All numbers that divide a problem, in ascending order."""
        return _all_divisors(self.max_smallest)

    def problems(self, count: int, seed: int, *, held_out: bool) -> list[str]:
        """See `Puzzle.problems`; a fifth of all numbers is held out."""
        return drawn(self.name, _sides(self.max_smallest), count, seed, held_out=held_out)

    def demonstration(self, random: Random) -> tuple[str, str]:
        """A divisor, drawn uniformly; see `Puzzle.demonstration`."""
        problem = random.choice(_sides(self.max_smallest)[False])
        return problem, str(random.choice(_divisors(int(problem))))

    def answers(self, problem: str) -> list[ListedAnswer]:
        """All divisors in ascending order; see `Puzzle.answers`."""
        return [ListedAnswer(text=str(d), strategy=str(d), is_valid=True) for d in _divisors(int(problem))]

    def is_problem(self, text: str) -> bool:
        """See `Puzzle.is_problem`."""
        return any(text in side for side in _sides(self.max_smallest).values())

    def is_correct(self, problem: str, answer: str) -> bool:
        """See `Puzzle.is_correct`."""
        return answer in map(str, _divisors(int(problem)))

    def kinds(self, answer: str) -> list[str]:
        """See `Puzzle.kinds`."""
        return ["digit"] * len(answer) + ["end"]


@cache
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(divisor for divisor in range(2, number // 2 + 1) if number % divisor == 0)


@cache
def _sides(max_smallest: int) -> dict[bool, list[str]]:
    """Is held out → the problems in ascending order."""
    sides: dict[bool, list[str]] = {False: [], True: []}
    for number in NUMBERS:
        if gcd(number, LAST_DIGITS) == 1 and any(number % divisor == 0 for divisor in range(3, max_smallest + 1)):
            sides[hash64(f"split/{number}")[0] % HELD_OUT_SHARE == 0].append(str(number))
    return sides


@cache
def _all_divisors(max_smallest: int) -> tuple[str, ...]:
    found = {divisor for side in _sides(max_smallest).values() for text in side for divisor in _divisors(int(text))}
    return tuple(map(str, sorted(found)))

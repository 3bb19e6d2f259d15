"""Divisors of a number: short answers that a small language model can sample but not compute."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import gcd
from random import Random
from typing import Annotated

from apo_lab.puzzles.puzzle import ListedAnswer, drawn
from apo_lightning.common.hashing import hash64
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError

NUMBERS = range(1_000, 10_000)
LAST_DIGITS = 10
"""Problems have no factor in common with it, so that the last digit gives no divisor away."""
HELD_OUT_SHARE = 5
"""One problem in so many is held out."""
CHOSEN = {True: 512, False: 128}
"""Is held out → problems, where `dominance` chooses among the numbers."""
SEVENS, MEAN_DIVISORS, MAX_DIVISORS = 0.36, 2.86, 6
"""Then of the numbers that 3 does not divide the share that 7 divides, the mean number of divisors and the highest.
More numbers, or another mean, can not be had at every `DOMINANCE`."""
DOMINANCE = "[0.3, 0.85]"


@dataclass(frozen=True, kw_only=True)
class Divisors(Checked):
    """`2541` asks for a divisor other than 1 and the number itself, in decimal digits without spaces: `3`, `231`.

    The numbers have four digits, are odd and do not end in 5. Each divisor is a strategy. A policy that always answers
    3 is right on the multiples of 3 and loses all other numbers.

    Attributes:
        max_smallest: numbers whose smallest divisor is larger are left out.
        dominance: d in [0.3, 0.85], the share of the problems that 3 divides, on either side of the split. No other
            answer is right on more, and held-out problems have 2.88 to 2.95 divisors in the mean. None: all numbers, of
            which 0.64 are multiples of 3.

    Raises:
        ConfigError: `max_smallest` is below 3, so that no number is left; `dominance` lies outside of its range, or is
            given with another `max_smallest` than 13.

    Example:
        >>> divisors = Divisors()
        >>> [answer.text for answer in divisors.answers("2541")]
        ['3', '7', '11', '21', '33', '77', '121', '231', '363', '847']
        >>> divisors.is_correct("2541", "3"), divisors.is_correct("2541", "2541"), divisors.is_correct("2541", " 3")
        (True, False, False)
    """

    max_smallest: Annotated[int, Within("[3, inf)")] = 13
    dominance: Annotated[float | None, Within(DOMINANCE)] = None

    name = "divisors"
    decision = "digit"
    max_prompt_tokens = 4
    max_completion_tokens = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dominance is not None and self.max_smallest != Divisors.max_smallest:
            raise ConfigError(f"max_smallest is {self.max_smallest}: with dominance it is {Divisors.max_smallest}")

    @property
    def strategies(self) -> Sequence[str]:
        """All numbers that divide a problem, in ascending order."""
        return _all_divisors(self.max_smallest, self.dominance)

    def problems(self, count: int, seed: int, *, held_out: bool) -> list[str]:
        """See `Puzzle.problems`; a fifth of all numbers is held out."""
        return drawn(self.name, _sides(self.max_smallest, self.dominance), count, seed, held_out=held_out)

    def demonstration(self, random: Random) -> tuple[str, str]:
        """A divisor, drawn uniformly; see `Puzzle.demonstration`."""
        problem = random.choice(_sides(self.max_smallest, self.dominance)[False])
        return problem, str(random.choice(_divisors(int(problem))))

    def answers(self, problem: str) -> list[ListedAnswer]:
        """All divisors in ascending order; see `Puzzle.answers`."""
        return [ListedAnswer(text=str(d), strategy=str(d), is_valid=True) for d in _divisors(int(problem))]

    def is_problem(self, text: str) -> bool:
        """See `Puzzle.is_problem`."""
        return any(text in side for side in _sides(self.max_smallest, self.dominance).values())

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
def _sides(max_smallest: int, dominance: float | None) -> dict[bool, list[str]]:
    """Is held out → the problems in ascending order."""
    numbers = [
        number
        for number in NUMBERS
        if gcd(number, LAST_DIGITS) == 1 and any(number % divisor == 0 for divisor in range(3, max_smallest + 1))
    ]
    if dominance is not None:
        return {side: list(map(str, sorted(chosen))) for side, chosen in _chosen(numbers, dominance).items()}
    sides: dict[bool, list[str]] = {False: [], True: []}
    for number in numbers:
        sides[hash64(f"split/{number}")[0] % HELD_OUT_SHARE == 0].append(str(number))
    return sides


def _chosen(numbers: Sequence[int], dominance: float) -> dict[bool, list[int]]:
    """Is held out → the numbers that `Divisors.dominance` chooses; multiples of 3, of 7 and of neither are balanced."""
    sides: dict[bool, list[int]] = {False: [], True: []}
    few = [number for number in numbers if len(_divisors(number)) <= MAX_DIVISORS]
    kinds = [0 if number % 3 == 0 else 1 if number % 7 == 0 else 2 for number in few]
    ends = 0.0, dominance, dominance + (1 - dominance) * SEVENS, 1.0
    for kind, (start, end) in enumerate(pairwise(ends)):
        ordered = _balanced([number for number, own in zip(few, kinds, strict=True) if own == kind])
        held_out, trained_on = (round(end * CHOSEN[side]) - round(start * CHOSEN[side]) for side in (True, False))
        whole = held_out + trained_on
        for place, number in enumerate(ordered[:whole]):
            # Every fifth is trained on, from the first to the last.
            sides[(place + 1) * held_out // whole > place * held_out // whole].append(number)
    return sides


def _balanced(numbers: Sequence[int]) -> list[int]:
    """Order numbers at random, but so that each first part has `MEAN_DIVISORS` divisors in the mean, while it can."""
    left = sorted(numbers, key=lambda number: hash64(f"order/{number}"))
    queues = {many: [n for n in left if (len(_divisors(n)) > MEAN_DIVISORS) == many] for many in (False, True)}
    ordered: list[int] = []
    excess = 0.0
    while any(queues.values()):
        many = excess < 0 if all(queues.values()) else bool(queues[True])
        ordered.append(queues[many].pop(0))
        excess += len(_divisors(ordered[-1])) - MEAN_DIVISORS
    return ordered


@cache
def _all_divisors(max_smallest: int, dominance: float | None) -> tuple[str, ...]:
    sides = _sides(max_smallest, dominance)
    found = {divisor for side in sides.values() for text in side for divisor in _divisors(int(text))}
    return tuple(map(str, sorted(found)))

"""Hashed locks: a policy can learn how often each of twelve strategies opens a lock, but not which opens this one."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Annotated, ClassVar

from apo_lab.puzzles.puzzle import ListedAnswer
from apo_lightning.common.hashing import hash64
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError

CLASSES = "pqrstuvw"
STRATEGIES = "ABCDEFGHIJKL"
KEY_DIGITS = 6
_PROBLEM = re.compile(rf"[{CLASSES}][0-9]{{{KEY_DIGITS}}}:")
SPREAD = (0.20, 0.16, 0.13, 0.11, 0.09, 0.08, 0.06, 0.05, 0.04, 0.035, 0.025, 0.02)
"""Weights of the strategies in demonstrations, the same in every class; not normalised."""
RATES = (0.50, 0.40, 0.32, 0.28, 0.20, 0.20, 0.20, 0.20, 0.12, 0.12, 0.12, 0.12)
"""How often a strategy opens a lock; the order differs between classes."""
RULES = (
    ((0, 0), (3, 0)),
    ((1, 0), (4, 0)),
    ((2, 0), (5, 0)),
    ((5, 0), (0, 0)),
    ((4, 0), (2, 0)),
    ((3, 0), (1, 0)),
    ((0, 1), (2, 0)),
    ((1, 1), (3, 0)),
    ((2, 1), (4, 0)),
    ((3, 1), (5, 0)),
    ((4, 1), (0, 0)),
    ((5, 1), (1, 0)),
)
"""The rule of each strategy for its two digits: (position in the key, number added modulo 10)."""


@dataclass(frozen=True, kw_only=True)
class Locks(Checked):
    """A problem is a class and a key, `q407913:`; an answer is a strategy and two digits of the key under it, `C73`.

    An answer is right iff both digits are, and hash(secret, problem, strategy) is below the strategy's rate in this
    class. For pass@1 one strategy is best in each class, and a policy that commits to it loses the valid alternatives.
    In half of the classes the best strategy has rank 5 in the demonstrations.

    Raises:
        ConfigError: `digit_accuracy` is no probability.

    Example:
        >>> locks = Locks()
        >>> locks.answers("q407913:")[2].text
        'C73'
        >>> locks.kinds("C73")
        ['strategy', 'digit', 'digit', 'end']
    """

    secret: int = 0
    """The secret decides the hash and the order of rates in each class: another secret is another instance."""
    digit_accuracy: Annotated[float, Within("(0, 1]")] = 0.74
    """Probability that a digit is right in a demonstration."""

    name = "locks"
    decision = "strategy"
    strategies: ClassVar[Sequence[str]] = tuple(STRATEGIES)
    max_prompt_tokens = KEY_DIGITS + 2
    max_completion_tokens = 4

    def problems(self, count: int, seed: int, *, held_out: bool) -> list[str]:
        """Keys are split by a hash, with an eighth held out; see `Puzzle.problems`."""
        largest = len(CLASSES) * 10**KEY_DIGITS // 16
        if count > largest:
            raise ConfigError(f"{count} problems of locks: at most {largest} are drawn from one side of the split")
        return list(_drawn(self, count, seed, held_out))

    def demonstration(self, random: Random) -> tuple[str, str]:
        """A strategy drawn by `SPREAD`, whether or not it opens the lock; see `Puzzle.demonstration`."""
        problem = _problem(random, held_out=False)
        (strategy,) = random.choices(range(len(STRATEGIES)), SPREAD)
        digits = [
            digit if random.random() < self.digit_accuracy else (digit + random.randrange(1, 10)) % 10
            for digit in _digits(problem, strategy)
        ]
        return problem, STRATEGIES[strategy] + "".join(map(str, digits))

    def answers(self, problem: str) -> list[ListedAnswer]:
        """Each strategy with right digits; see `Puzzle.answers`."""
        return [
            ListedAnswer(text=_carried_out(problem, i), strategy=strategy, is_valid=self.opens(problem, i))
            for i, strategy in enumerate(STRATEGIES)
        ]

    def is_problem(self, text: str) -> bool:
        """See `Puzzle.is_problem`."""
        return _PROBLEM.fullmatch(text) is not None

    def is_correct(self, problem: str, answer: str) -> bool:
        """See `Puzzle.is_correct`."""
        strategy = STRATEGIES.find(answer[:1])
        return strategy >= 0 and answer == _carried_out(problem, strategy) and self.opens(problem, strategy)

    def kinds(self, answer: str) -> list[str]:
        """See `Puzzle.kinds`."""
        return ["strategy", "digit", "digit", "end"]

    def opens(self, problem: str, strategy: int) -> bool:
        """Whether a strategy, carried out without a mistake, opens this lock."""
        draw = int.from_bytes(hash64(f"{self.secret}/{problem}/{STRATEGIES[strategy]}"), "big") / 2**64
        return draw < self.rate(problem[0], strategy)

    def rate(self, lock_class: str, strategy: int) -> float:
        """How often the strategy opens locks of the class, in [0, 1]."""
        return RATES[_places(self.secret, CLASSES.index(lock_class))[strategy]]


@cache  # the runs of a laboratory share a process and their problems
def _drawn(locks: Locks, count: int, seed: int, held_out: bool) -> tuple[str, ...]:
    random = Random(f"locks/{seed}/{held_out}")
    found: dict[str, None] = {}
    while len(found) < count:
        problem = _problem(random, held_out=held_out)
        if any(locks.opens(problem, strategy) for strategy in range(len(STRATEGIES))):
            found[problem] = None
    return tuple(found)


def _problem(random: Random, *, held_out: bool) -> str:
    while True:
        problem = random.choice(CLASSES) + "".join(random.choices("0123456789", k=KEY_DIGITS)) + ":"
        if (hash64(f"split/{problem}")[0] % 8 == 0) == held_out:
            return problem


def _carried_out(problem: str, strategy: int) -> str:
    return STRATEGIES[strategy] + "".join(map(str, _digits(problem, strategy)))


def _digits(problem: str, strategy: int) -> list[int]:
    return [(int(problem[1 + place]) + shift) % 10 for place, shift in RULES[strategy]]


@cache
def _places(secret: int, class_index: int) -> list[int]:
    """The index in `RATES` of each strategy's rate; in the first four classes the best strategy has rank 5."""
    others = list(range(len(RATES)))
    # Instance 0 has no secret here: runs and figures are published of it.
    Random(f"places/{class_index}" + (f"/{secret}" if secret else "")).shuffle(others)
    best = 4 if class_index < 4 else (0, 1, 2, 6)[class_index - 4]
    others.remove(0)
    return [*others[:best], 0, *others[best:]]

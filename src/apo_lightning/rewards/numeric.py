"""Exact comparison of numbers, without floats, `eval` or another process."""

import re
from collections.abc import Sequence
from fractions import Fraction

from apo_lightning.contracts import Reward
from apo_lightning.errors import ConfigError
from apo_lightning.types import Verdict
from math_answers.extraction import last_boxed, last_line_after
from math_answers.nodes import UnreadError
from math_answers.reader import read
from math_answers.text import MAX_CHARS, unwrap
from math_answers.values import exact

_MARKER = re.compile(r"(?:answer|答案)\s*(?:\*{1,2}|</b>|</strong>)?\s*[:：]|####", re.IGNORECASE)
_NUMBER = re.compile(
    r"""
    (?:(?<![\w)\]}.])[-+−])?            # after a digit or a bracket a minus subtracts and is not a sign
    (?:\\?\$\s?[-+−]?)?
    (?:(?>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?+|(?<![0-9])\.[0-9]++)
    (?:\s?/\s?[0-9]++(?!\.[0-9]))?
    """,
    re.VERBOSE,
)
_UNIT = re.compile(r"\s*\\?%|\s*\\(?:text|mathrm)\{[^{}]*\}|\s+[A-Za-z][A-Za-z .]*")


class NumericReward(Reward):
    r"""Reward 1 where the completion's number equals the gold number, as rationals; else 0.

    The number is read from the last `\boxed{…}`; without a box, from the line after the last "Answer:" or "####";
    without either, from anywhere in the text. A box and an answer line must contain one number and at most a unit
    (so `\boxed{\sqrt{2}}` is not 2); free text may contain more. Understood are integers, decimals, a/b, thousands
    separators, a leading sign or dollar. No number, or one of over 4096 characters, is `unparsed`.

    Args:
        take: "first" or "last": which number of a *free* text is the answer. "first" suits a prefilled "13 + 5 =",
            which the completion continues with the answer; "last" suits a derivation.

    Raises:
        ConfigError: `take` is neither.

    Example:
        >>> reward = NumericReward(take="first")
        >>> reward.score([" 18, since 13 + 5 = 18", r"\boxed{36/2}", "I do not know"], ["18", "18", "18"])
        ... # doctest: +NORMALIZE_WHITESPACE
        [Verdict(reward=1.0, status='correct', extracted='18'),
         Verdict(reward=1.0, status='correct', extracted='36/2'),
         Verdict(reward=0.0, status='unparsed', extracted=None)]
    """

    def __init__(self, take: str = "first"):
        if take not in ("first", "last"):
            raise ConfigError(f'reward.take is {take!r}: it must be "first" or "last"')
        self.take = take

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        """One verdict per completion, in order; `error` where the *gold* answer is not a number."""
        return [self._judge(completion, gold) for completion, gold in zip(completions, answers, strict=True)]

    def check_answers(self, answers: Sequence[str]) -> None:
        """Raise ConfigError for the first gold answer that is not a number."""
        for index, gold in enumerate(answers):
            if _value(_lone_number(gold)) is None:
                raise ConfigError(
                    f"answer {index} of {len(answers)} is {gold[:200]!r}, not a number: "
                    "use reward=math_verify, or drop the row"
                )

    def _judge(self, completion: str, gold: str) -> Verdict:
        expected = _value(_lone_number(gold))
        if expected is None:
            return Verdict(reward=0.0, status="error")
        stated = self._stated_number(completion)
        number = _value(stated)
        if stated is None or number is None:
            return Verdict(reward=0.0, status="unparsed")
        is_correct = number == expected
        status = "correct" if is_correct else "incorrect"
        return Verdict(reward=float(is_correct), status=status, extracted=stated.group())

    def _stated_number(self, completion: str) -> re.Match[str] | None:
        # An unclosed box means a truncated completion: a number of its derivation is not the answer.
        if r"\boxed" in completion:
            return _lone_number(last_boxed(completion))
        if _MARKER.search(completion):
            return _lone_number(last_line_after(completion, _MARKER))
        if self.take == "first":
            return _NUMBER.search(completion)
        *_, last = [None, *_NUMBER.finditer(completion)]
        return last


def _lone_number(text: str | None) -> re.Match[str] | None:
    """The number, if the text consists of it and at most a unit."""
    if text is None or len(text) > MAX_CHARS:
        return None
    text = unwrap(text).replace("{,}", ",")
    number = _NUMBER.match(text)
    if number is None or (number.end() < len(text) and _UNIT.fullmatch(text, number.end()) is None):
        return None
    return number


def _value(number: re.Match[str] | None) -> Fraction | None:
    """The exact value of the number; None for n/0 or a number that is too long."""
    if number is None or len(number.group()) > MAX_CHARS:
        return None
    try:
        found = read(number.group())
        return exact(found.args[0] if found.head == "quantity" else found)
    except UnreadError:
        return None

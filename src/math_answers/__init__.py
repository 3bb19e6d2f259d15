r"""Whether two answers to a mathematical problem are the same.

    extract   completion → the text of its answer
    equal     gold answer, answer → True or False
    explain   the same, with what decided

What is on no closed list is not dropped, not guessed and not equal: docs/verifier.md says what is. A verdict depends
on the two texts alone; work is counted before it is done, never timed.

    text → lexer (closed lists: tables) → reader (grammar) → a tree of nodes
    two trees → comparison → sets (intervals), values (exact, or at points with a precision that follows the size)
"""

import re
import threading
from dataclasses import dataclass

from math_answers.comparison import num_parts, same
from math_answers.extraction import final_boxes, stated_answer
from math_answers.nodes import TooLargeError, UnreadError
from math_answers.pool import Status
from math_answers.reader import read
from math_answers.text import MAX_CHARS, unwrap

_PRECISION = threading.Lock()
"""mpmath's precision is one for all threads."""

__all__ = ["Explanation", "equal", "explain", "extract", "judge"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A verdict, and what decided."""

    status: Status
    """`unparsed`: the answer is not read. `timeout`: it is not computed. `error`: the gold is not read."""
    rule: str

    @property
    def is_equal(self) -> bool:
        """Whether the answer counts as right."""
        return self.status == "correct"


def extract(completion: str, gold: str | None = None) -> str | None:
    r"""The answer that a completion states; None where there is none, or one that is too long.

    It is the content of the last `\boxed{…}`, without a box the line after the last "Answer:". Where the gold answer
    is a list or set of n parts and exactly n boxes with one part each end the completion together, they are one answer.

    Example:
        >>> extract(r"so it is \boxed{042}."), extract(r"$\boxed{2}$ and $\boxed{3}$", gold="2, 3"), extract("it is 42")
        ('042', '2, 3', None)
    """
    answer = stated_answer(completion)
    if gold is not None and answer is not None and r"\boxed" in completion and (size := _num_parts(gold)) > 1:
        answer = _joined(final_boxes(completion, most=size + 1), size) or answer
    return None if answer is None or len(answer) > MAX_CHARS else answer


def equal(gold: str, answer: str) -> bool:
    r"""Whether an answer is the gold one.

    Example:
        >>> equal("1/2", r"0.5\text{ cm}"), equal("12", r"12\pi"), equal("(1,3)", "1 < x < 3"), equal("5", "5 dozens")
        (True, False, True, False)
    """
    return explain(gold, answer).is_equal


def explain(gold: str, answer: str) -> Explanation:
    """`equal`, with its status and what decided.

    Example:
        >>> explain("5", "5 blargs").rule
        "the answer is not read: the word 'blargs' behind a value"
    """
    if not gold.strip():
        return Explanation("error", "there is no gold")
    if "".join(gold.split()) == "".join(answer.split()) and _without_spaces(gold) == _without_spaces(answer):
        return Explanation("correct", "the same text")
    if max(len(gold), len(answer)) < 1000 and gold.isdecimal() and answer.isdecimal():
        return Explanation("correct" if int(gold) == int(answer) else "incorrect", "whole numbers")
    try:
        expected = read(gold, None)
    except UnreadError as error:
        return Explanation("error", f"the gold is not read: {error}")
    try:
        found = read(answer, frozenset(re.findall("[a-z]+", gold.lower())))
    except UnreadError as error:
        return Explanation("unparsed", f"the answer is not read: {error}")
    try:
        with _PRECISION:
            is_equal = same(expected, found)
    except TooLargeError as error:
        return Explanation("timeout", f"not computed: {error}")
    return Explanation("correct" if is_equal else "incorrect", f"{expected} and {found}"[:1000])


def judge(gold: str, answer: str) -> Status:
    """The status alone, as the worker processes reply it."""
    return explain(gold, answer).status


def _without_spaces(text: str) -> str:
    """Spaces between two letters or digits, and inside of 2e - 3, may mean something."""
    return re.sub(r"(?<![A-Za-z0-9])(?<![0-9][eE][-+])\s+|(?<![0-9][eE])\s+(?![A-Za-z0-9])", "", text)


def _num_parts(gold: str) -> int:
    try:
        return num_parts(read(gold, None))
    except UnreadError:
        return 1


def _joined(boxes: list[str], size: int) -> str | None:
    """`size` boxes with one part each as one list; None where the number differs or a box holds a list."""
    parts = [unwrap(box) for box in boxes]
    is_list = len(parts) == size and all(parts) and all(_num_parts(part) == 1 for part in parts)
    return ", ".join(parts) if is_list else None

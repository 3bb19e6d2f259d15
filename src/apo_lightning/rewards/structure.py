r"""Answers with several parts: points, intervals, sets, lists, unions and matrices, split at the top level."""

import re
from dataclasses import dataclass
from typing import Literal

from apo_lightning.rewards.normalise import normalise
from apo_lightning.rewards.wording import list_in_text

Kind = Literal["tuple", "interval", "set", "list", "union", "matrix"]

_TOKEN = re.compile(
    r"""
    (?P<separator>,?\s*\\text\{\s*(?:and|or)\s*\}\s*|,?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])\s*|[,;和或与及])
    |(?P<union>\\cup(?![A-Za-z]))
    |(?P<equals>=|\\in(?![A-Za-z]))
    |(?P<opening>\\\{|\\lbrace(?![A-Za-z])|\\begin\{[a-z]+\}|[({\[])
    |(?P<closing>\\\}|\\rbrace(?![A-Za-z])|\\end\{[a-z]+\}|[)}\]])
    |(?P<other>\\[A-Za-z]+|\\.|.)
    """,
    re.VERBOSE | re.DOTALL,
)
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_MAX_GROUPS = 4
"""Most nested parentheses that are removed; no answer has more, and each takes a pass."""
_MATRIX = re.compile(r"\\begin\{(?P<name>[pb]?)matrix\}(?P<body>(?:(?!\\begin).)*)\\end\{(?P=name)matrix\}", re.DOTALL)
_PLUS_MINUS = re.compile(r"\\(?:pm|mp)(?![A-Za-z])(?=\s*\S)")


@dataclass(frozen=True, slots=True)
class Compound:
    """An answer with several parts."""

    kind: Kind
    parts: tuple[str, ...]
    shape: str = ""
    """Must also agree: the brackets of an interval, or the number of columns in each row of a matrix."""

    @property
    def is_ordered(self) -> bool:
        """True where the order of the parts matters."""
        return self.kind in ("tuple", "interval", "matrix")


def take_apart(answer: str) -> Compound | None:
    r"""The parts of a normalised answer; None where it is a single expression.

    Two parts in parentheses may be a point or an open interval, and count as a tuple; two in other brackets are an
    interval, more than two a tuple. A comma outside all brackets, "and", "or" and a single ± make a list.

    Example:
        >>> take_apart("(3,4]")
        Compound(kind='interval', parts=('3', '4'), shape='(]')
        >>> take_apart(r"1 \pm \sqrt{2}").parts
        ('1 + \\sqrt{2}', '1 - \\sqrt{2}')
        >>> take_apart("2(x+1)") is None
        True
    """
    answer = answer.strip()
    if matrix := _MATRIX.fullmatch(answer):
        rows = [row.split("&") for row in matrix["body"].strip().removesuffix(r"\\").split(r"\\")]
        return Compound("matrix", tuple(part.strip() for row in rows for part in row), str([len(row) for row in rows]))
    if worded := list_in_text(answer):
        # The order of names may matter; letters of choices are a set.
        is_set = all(len(part) == 1 for part in worded)
        return Compound("list" if is_set else "tuple", tuple(normalise(rf"\text{{{part}}}") for part in worded))
    kinds: tuple[Kind, Kind] = ("list", "union")
    for kind in kinds:
        parts = _split(answer, "separator" if kind == "list" else "union")
        if parts is not None and len(parts) > 1:
            return Compound(kind, tuple(_each_sign(parts))) if all(parts) else None
    if bracketed := _bracketed(answer):
        return bracketed
    signed = _each_sign([answer])
    return Compound("list", tuple(signed)) if len(signed) == 2 else None


def sides_of_equals(answer: str) -> list[str]:
    r"""The sides of "=" or "∈" in an answer; one side for a list or an answer without them."""
    if len(_split(_THOUSANDS.sub("0", answer), "separator") or ()) != 1:
        return [answer]
    return _split(answer, "equals") or [answer]


def without_group(answer: str) -> str:
    """The answer without parentheses around all of it."""
    for _ in range(_MAX_GROUPS):
        is_group = answer.startswith("(") and answer.endswith(")")
        if not is_group or len(_split(answer[1:-1], "separator") or ()) != 1:
            break
        answer = answer[1:-1].strip()
    return answer


def _bracketed(answer: str) -> Compound | None:
    answer = answer.replace(r"\lbrace", r"\{").replace(r"\rbrace", r"\}")
    if answer.startswith(r"\{") and answer.endswith(r"\}"):
        parts = _split(answer[2:-2], "separator")
        return Compound("set", tuple(_each_sign(parts))) if parts and all(parts) else None
    if answer[:1] not in ("(", "[") or answer[-1:] not in (")", "]"):
        return None
    parts = _split(answer[1:-1], "separator")
    if parts is None or len(parts) < 2 or not all(parts):
        return None
    brackets = answer[0] + answer[-1]
    if brackets == "()" or len(parts) > 2:
        return Compound("tuple", tuple(parts))
    return Compound("interval", tuple(parts), brackets)


def _each_sign(parts: list[str]) -> list[str]:
    """The parts; one with a single ± becomes two, with plus and with minus."""
    signed: list[str] = []
    for part in parts:
        is_two = len(_PLUS_MINUS.findall(part)) == 1
        signed += [_PLUS_MINUS.sub(sign, part).removeprefix("+").strip() for sign in "+-"] if is_two else [part]
    return signed


def _split(answer: str, at: str) -> list[str] | None:
    """The answer split at tokens of one kind outside all brackets; None where brackets do not match."""
    depth, start, parts = 0, 0, []
    for token in _TOKEN.finditer(answer):
        depth += (token.lastgroup == "opening") - (token.lastgroup == "closing")
        if depth < 0:
            return None
        if depth == 0 and token.lastgroup == at:
            parts.append(answer[start : token.start()].strip())
            start = token.end()
    return [*parts, answer[start:].strip()] if depth == 0 else None

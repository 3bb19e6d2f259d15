"""Extraction of the answer from a completion, in time linear in the text."""

import re
from dataclasses import dataclass

MAX_ANSWER_CHARS = 4096
"""A longer answer [characters] is treated as missing: no gold is that long, and parsing it would take long.

An answer and a gold of this length fit into a 64 KiB pipe even at 6 bytes a character (see `worker_pool`).
"""

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[^\s{}$\\]", re.DOTALL)
_BOX = re.compile(r"\\boxed(?![A-Za-z])\s*")
_SEPARATOR = r"[,;$\n和或与及、]|\\\\|\\[()\[\]]|\\q?quad(?![A-Za-z])|\\text\s*\{[\s,]*(?:and|or)\s*\}|\b(?:and|or)\b"
_BLANK = r"(?:\s|\\[,;: ])*+"
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_(?:\w|\{\w+\})|')?(?:\([A-Za-z0-9]\))?"
_BETWEEN = re.compile(rf"(?:[^\S\n]|\\[,;: ])*+(?:(?:{_SEPARATOR}){_BLANK})++(?:(?P<name>{_NAME})\s*=\s*)?")
_MAX_BETWEEN = 64
"""Most characters between two boxes of one answer; a longer gap is prose."""
_PUNCTUATION = re.compile(r"(?<!\\)[.,;]$|。$")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, with balanced braces; None where there is none.

    A box that is never closed (a completion cut at its token limit) gives no answer, and an earlier box does not
    replace it: only the last one counts. Without braces LaTeX takes the next token as the argument: `\boxed 25` is a
    2 in a box, followed by a 5.

    Example:
        >>> last_boxed(r"First \boxed{7}, no: \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
    """
    box = _last_box(text, len(text))
    return None if box is None else box.content


def final_boxes(text: str, most: int) -> list[str]:
    r"""The contents of the boxes that end a completion together, in order; empty where the last one is not closed.

    Boxes are together if only separators stand between them: commas, semicolons, dollars, line breaks, wide spaces,
    "and", "or". "x =" before a box names its content, except before the first one, where it may end a longer
    expression.

    At most `most` boxes are read, from the last one.
    """
    contents: list[str] = []
    box = _last_box(text, len(text))
    while box is not None and len(contents) < most:
        before = _last_box(text, box.start)
        between = None
        if before is not None and box.start - before.end <= _MAX_BETWEEN:
            between = _BETWEEN.fullmatch(text, before.end, box.start)
        name = between["name"] if between is not None else None
        contents.append(f"{name} = {box.content}" if name else box.content)
        box = before if between is not None else None
    return contents[::-1]


@dataclass(frozen=True, slots=True)
class _Box:
    start: int
    end: int
    content: str


def _last_box(text: str, end: int) -> _Box | None:
    """The last box that begins before `end`; None where there is none or it is not closed."""
    at = text.rfind(r"\boxed", 0, end)
    while at >= 0 and not _BOX.match(text, at, end):
        at = text.rfind(r"\boxed", 0, at)
    box = _BOX.match(text, at, end) if at >= 0 else None
    if box is None:
        return None
    if not text.startswith("{", box.end(), end):
        token = _TOKEN.match(text, box.end(), end)
        return _Box(at, token.end(), token.group()) if token else None
    depth, start = 1, box.end() + 1
    for brace in _BRACE.finditer(text, start, end):
        # `\{` and `\}` are matched with their backslash and do not change the depth: they delimit a set, not a group.
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return _Box(at, brace.end(), text[start : brace.start()])
    return None


def last_line_after(text: str, marker: re.Pattern[str]) -> str | None:
    """The rest of the line (or the next line, if that is empty) after the last occurrence of the marker."""
    *_, last = [None, *marker.finditer(text)]
    if last is None:
        return None
    return text[last.end() :].lstrip(" \t\r\n*").partition("\n")[0].rstrip() or None


def unwrap(answer: str) -> str:
    r"""The answer without the marks around it in prose: dollars, `\( \)`, asterisks, a full stop or comma, spaces.

    Quadratic in the worst case: pass at most `MAX_ANSWER_CHARS`.
    """
    previous = None
    while answer != previous:
        previous = answer = answer.strip()
        if not answer.endswith(r"\right."):  # this full stop is a delimiter, and LaTeX fails without it
            answer = _PUNCTUATION.sub("", answer).rstrip()
        for left, right in _WRAPPERS:
            inner = answer[len(left) : -len(right)]
            if answer == f"{left}{inner}{right}" and left not in inner and right not in inner:
                answer = inner
    return answer

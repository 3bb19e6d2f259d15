"""Extraction of the answer from a completion, in time linear in the text."""

import re
from dataclasses import dataclass

_MARKER = re.compile(r"(?:answer(?:\s++is)?|答案[是为]?)(?:\s|\*|_|</b>|</strong>)*+[:：]", re.IGNORECASE)
"""Possessive: a search that gave blanks back would take the square of their number."""
_FIRST_WINDOW = 2**16
"""Characters from the end in which the marker is looked for first."""

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[^\s{}$\\]", re.DOTALL)
_BOX = re.compile(r"\\boxed(?![A-Za-z])\s*")
_SEPARATOR = r"[,;$\n和或与及、]|\\\\|\\[()\[\]]|\\q?quad(?![A-Za-z])|\\text\s*\{[\s,]*(?:and|or)\s*\}|\b(?:and|or)\b"
_BLANK = r"(?:\s|\\[,;: ])*+"
_NAME = r"(?:[A-Za-z]|\\[A-Za-z]+)(?:_(?:\w|\{\w+\})|')?(?:\([A-Za-z0-9]\))?"
_BETWEEN = re.compile(rf"(?:[^\S\n]|\\[,;: ])*+(?:(?:{_SEPARATOR}){_BLANK})++(?:(?P<name>{_NAME})\s*=\s*)?")
_MOST_AROUND = 8
"""Boxes before the last one that may stand around it."""
_MAX_BETWEEN = 64
"""Most characters between two boxes of one answer; a longer gap is prose."""


def stated_answer(text: str, marker: re.Pattern[str] = _MARKER) -> str | None:
    """The content of the last box, and without a box the line after the last "Answer:"; None where there is neither.

    An unclosed box means a truncated completion: an earlier "Answer:" does not count.
    """
    return last_boxed(text) if r"\boxed" in text else last_line_after(text, marker)


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
    # A box around it may say more: \boxed{42 \text{ or } \boxed{43}}.
    around = box
    for _ in range(_MOST_AROUND):
        around = None if around is None else _last_box(text, around.start, len(text))
        box = around if around is not None and box is not None and around.end > box.end else box
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


def _last_box(text: str, before: int, end: int | None = None) -> _Box | None:
    """The last box that begins before `before`; None where there is none or it is not closed by `end`, or by there."""
    at = text.rfind(r"\boxed", 0, before)
    end = before if end is None else end
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


def last_line_after(text: str, marker: re.Pattern[str] = _MARKER) -> str | None:
    """The rest of the line after the last occurrence of the marker, or what stands below it, where that is empty.

    Display maths may take several lines.
    """
    window, last = _FIRST_WINDOW, None
    while last is None:
        *_, last = [None, *marker.finditer(text, max(0, len(text) - window))]
        if window >= len(text):
            break
        window *= 16
    if last is None:
        return None
    rest = text[last.end() :].lstrip()
    for opening, closing in ((r"\[", r"\]"), ("$$", "$$")):
        if rest.startswith(opening):
            inside, found, _ = rest[len(opening) :].partition(closing)
            return inside.strip() or None if found else None
    line = re.sub(r"(?:</[a-z]+>)+$", "", rest.partition("\n")[0].rstrip())
    for mark in ("***", "**", "*", "__", "_", "</b>", "</strong>"):
        if line.count(mark) % 2:  # one of a pair, around the marker or around both
            line = line.removeprefix(mark).removesuffix(mark).strip()
    return line or None

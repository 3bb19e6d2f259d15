"""Finding the answer that a completion states. Linear in the text, whatever the text."""

import re

MAX_ANSWER_CHARS = 4096
"""A longer answer is treated as none [characters]: no gold is near it, and it would only feed the verifier's parser.

An answer and a gold of this length still fit, at 6 bytes a character, into a 64 KiB pipe (see `worker_pool`).
"""

_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[^\s{}$\\]", re.DOTALL)
_BOX = re.compile(r"\\boxed(?![A-Za-z])\s*")
_PUNCTUATION = re.compile(r"(?<!\\)[.,;]$|。$")
_WRAPPERS = (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"))


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}`, its braces balanced; None where there is none.

    A box that is never closed (a completion cut at its token limit) states no answer, and an earlier box does not
    stand in for it: only the last one counts. Without braces LaTeX takes the next token for the argument: `\boxed 25`
    is a 2 in a box and a 5 behind it.

    Example:
        >>> last_boxed(r"First \boxed{7}, no: \boxed{\frac{1}{2}}.")
        '\\frac{1}{2}'
        >>> last_boxed(r"First \boxed{7}, no: \boxed{\frac{1}{2}") is None
        True
        >>> last_boxed(r"the answer is $\boxed 2$")
        '2'
    """
    at = text.rfind(r"\boxed")
    while at >= 0 and not _BOX.match(text, at):
        at = text.rfind(r"\boxed", 0, at)
    box = _BOX.match(text, at) if at >= 0 else None
    if box is None:
        return None
    if not text.startswith("{", box.end()):
        token = _TOKEN.match(text, box.end())
        return token.group() if token else None
    depth, start = 1, box.end() + 1
    for brace in _BRACE.finditer(text, start):
        # An escaped brace is a set's, not a group's: it is matched with its backslash and changes no depth.
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0:
            return text[start : brace.start()]
    return None


def last_line_after(text: str, marker: re.Pattern[str]) -> str | None:
    """The rest of the line (or the next, if that is empty) after the marker's last occurrence.

    Example:
        >>> last_line_after("Answer: 4? Answer: 5 apples", re.compile("Answer:"))
        '5 apples'
    """
    *_, last = [None, *marker.finditer(text)]
    if last is None:
        return None
    return text[last.end() :].lstrip(" \t\r\n*").partition("\n")[0].rstrip() or None


def unwrap(answer: str) -> str:
    r"""The answer without what surrounds it in prose: dollars, `\( \)`, asterisks, a full stop or comma, blanks.

    Quadratic in the worst case: call it on no more than `MAX_ANSWER_CHARS`.

    Example:
        >>> unwrap(r" **$\frac{1}{2}$.** ")
        '\\frac{1}{2}'
    """
    previous = None
    while answer != previous:
        previous = answer = answer.strip()
        if not answer.endswith(r"\right."):  # there the dot is a delimiter, and LaTeX fails without it
            answer = _PUNCTUATION.sub("", answer).rstrip()
        for left, right in _WRAPPERS:
            inner = answer[len(left) : -len(right)]
            if answer == f"{left}{inner}{right}" and left not in inner and right not in inner:
                answer = inner
    return answer

r"""LaTeX and plain notation → tokens. A character or command on no closed list raises."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from math_answers import tables
from math_answers.nodes import UnreadError


@dataclass(frozen=True, slots=True)
class Token:
    """A word, a number, a mark or a command."""

    kind: str
    """number, letter, word, command, mark, space"""
    text: str
    space: bool = False
    """White space stands before it."""
    upright: bool = False
    """From `\\text{…}`."""
    gap: bool = False
    """A space that LaTeX was asked for stands before it."""


_COMMAND = re.compile(r"\\(?:[A-Za-z]+|.)", re.DOTALL)
_THOUSANDS = (
    r"(?:\{,\}|,\\! ?|\\,"
    # A space of LaTeX, where there are two.
    r"|\\ (?=[0-9]{3}\\ [0-9]{3}(?![0-9]))|\\ (?=[0-9]{3}(?![0-9])(?<=[0-9]{3}\\ )))"
)
"""What stands in a number for the sake of its looks."""
_NUMBER = re.compile(
    rf"[0-9]{{1,3}}(?:{_THOUSANDS}[0-9]{{3}})+(?![0-9])(?:\.[0-9]+)?"
    r"|[0-9]{1,3}(?: [0-9]{3}){2,}(?![0-9])"
    r"|(?:[0-9]+\.?[0-9]*|\.[0-9]+)"
)
_EXPONENT = re.compile(r"[eE]([-+]?[0-9]+)(?![A-Za-z0-9])")
_EMPTY_START = re.compile(r"\.(?=\\(?:overline|bar|dot)(?![A-Za-z]))")
_HEX = re.compile(r"[0-9]+[A-F][0-9A-F]*(?=\)?\s*_)|[A-F]+[0-9][0-9A-F]*(?=\)?\s*_)")
_FUNCTIONS_AND_UNITS = tables.FUNCTIONS & tables.UNITS
_ENDS_A_UNIT = re.compile(r"\s*(?:$|[/,;.)^$])")
"""What stands behind a minute or a second, and not behind a minimum or a secant."""
_UNIT_MARKS = re.compile(r"\\[,;: ]|\\cdot(?![A-Za-z])|\^\{?-?[0-9]\}?|[/~]")
_LETTERS = re.compile(r"[A-Za-z]+")
_CHINESE = re.compile("[\u4e00-\u9fff\u0400-\u04ff]+")
_SCALES = sorted(tables.CHINESE_SCALES, key=len, reverse=True)
_NO_SCALE = re.compile("千[米克瓦焦赫帕卡伏升]|百分")
_PHANTOMS = frozenset(["phantom", "vphantom", "hphantom"])
_WITH_ARGUMENT = tables.UPRIGHT | tables.FRAMES | _PHANTOMS | {"color", "textcolor"}
_KNOWN = tables.NAMES | tables.NOUNS | tables.WORDS | {u for u in tables.UNITS if len(u) > 3}
_KNOWN |= tables.SCALES.keys() | tables.NUMERALS.keys()
_PLAIN_NAMES = tables.FUNCTIONS | {"mod"} | tables.GREEK - {"xi", "eta", "nu", "mu", "ell"} | {"pi"}


MOST_TOKENS = 800
"""The longest answer that is read; the longest gold of the common benchmarks has 150."""


def tokens(text: str) -> list[Token]:
    """All tokens of a cleaned answer."""
    found: list[Token] = []
    space = gap = False
    for token in _raw(text):
        if token.kind == "space":
            space, gap = True, gap or token.text != " "
            continue
        found.append(replace(token, space=space or token.space, gap=gap))
        space = gap = False
        if len(found) > MOST_TOKENS:
            raise UnreadError("too long")
    return found


def braced(text: str, at: int) -> tuple[str, int]:
    """The content of the brace that opens at `at`, and where it ends."""
    depth = 0
    for match in re.compile(r"\\.|[{}]", re.DOTALL).finditer(text, at):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0:
            return text[at + 1 : match.start()], match.end()
    raise UnreadError("a brace that is not closed")


def _raw(text: str, upright: bool = False) -> Iterator[Token]:
    at = 0
    while at < len(text):
        char = text[at]
        if char.isspace():
            at += 1
            yield Token("space", " ")
        elif char == "\\":
            command = _COMMAND.match(text, at)
            if command is None:
                raise UnreadError("a backslash at the end")
            at = command.end()
            name = command[0][1:]
            if name in tables.SIZES:
                continue
            if command[0] in tables.SPACES:
                yield Token("space", command[0])
            elif name in _WITH_ARGUMENT:
                at = yield from _framed(text, at, name)
            elif name == "\\":
                yield Token("mark", "\\\\")
                if row := re.compile(r"\s*\[[0-9.]+(?:pt|em|ex|mm|cm)\]").match(text, at):
                    at = row.end()
            else:
                yield Token("command", name.removeprefix("var") if name.removeprefix("var") in tables.GREEK else name)
        elif text[at : at + 3] in ("{,}", "{:}", "{=}"):
            yield Token("mark", text[at + 1])
            at += 3
        elif match := _HEX.match(text, at):
            at = match.end()
            yield Token("digits", match[0])
        elif match := _EMPTY_START.match(text, at):
            at = match.end()
            yield Token("number", "0.")
        elif match := _NUMBER.match(text, at):
            at = match.end()
            digits = re.sub(r"\{,\}|,\\! ?|\\,|\\ |,| ", "", match[0])
            exponent = _EXPONENT.match(text, at)
            if exponent:
                at = exponent.end()
                yield Token(
                    "number", f"{digits}e{int(exponent[1])}" if abs(int(exponent[1])) < 1000 else _refuse(match[0])
                )
            else:
                yield Token("number", digits, upright=upright)
        elif match := _LETTERS.match(text, at):
            at = match.end()
            yield from _word(match[0], upright)
        elif match := _CHINESE.match(text, at):
            at = match.end()
            scale = next(
                (scale for scale in _SCALES if match[0].startswith(scale) and not _NO_SCALE.match(match[0])), ""
            )
            for part in filter(None, (scale, match[0][len(scale) :])):
                yield Token("word", part, upright=True)
        elif upright and char == "-" and text[at - 1 : at].isalpha() and text[at + 1 : at + 2].isalpha():
            at += 1  # Tom-Tom
        elif char == "$" or char == "\u200b":
            at += 1
        elif char in "+-*/^_=<>()[]{},;:|!%'&?€£¥":
            at += 1
            if char == "*" and text.startswith("*", at):
                at += 1
                char = "^"
            yield Token("mark", char, upright=upright)
        elif upright and char == ".":
            at += 1
        else:
            raise UnreadError(f"the character {char!r}")


def _refuse(text: str) -> str:
    raise UnreadError(f"the number {text}")


def _framed(text: str, at: int, name: str) -> Iterator[Token]:
    while text[at : at + 1].isspace():
        at += 1
    if name in ("color", "textcolor"):
        if text[at : at + 1] != "{":
            raise UnreadError(rf"\{name} without braces")
        _, at = braced(text, at)
        if name == "color":
            return at
    if text[at : at + 1] == "{":
        content, at = braced(text, at)
    elif at < len(text) and text[at] != "\\":
        content, at = text[at], at + 1
    else:
        raise UnreadError(rf"\{name} without braces")
    word = content.strip()
    if re.fullmatch(r"[0-9A-Z]*[0-9][0-9A-Z]*|[A-F]+", content) and text[at : at + 1] == "_":
        yield Token("digits", content)
    elif name in _PHANTOMS:
        yield Token("space", " ")
    elif name in ("mathbf", "boldsymbol", "bm") and word in ("i", "j", "k"):
        yield Token("letter", f"unit vector {word}")
    elif name in ("mathbf", "boldsymbol", "bm") and len(word) == 1 and word.islower():
        yield Token("letter", f"vec {word}")
    elif name in ("mathrm", "operatorname") and word in tables.FUNCTIONS:
        is_unit = name == "mathrm" and word in _FUNCTIONS_AND_UNITS and _ENDS_A_UNIT.match(text, at) is not None
        yield from _word(word, is_unit)
    elif name in ("mathrm", "text") and _is_of_units(content):
        yield from _raw(content, upright=True)
    elif name in tables.FRAMES or "\\" in content or "$" in content:
        yield from _raw(re.sub(r"(?<!\\)\$", "", content))
    elif word in ("e", "i", "d"):
        yield Token("letter", word)
    else:
        yield from _raw(content, upright=True)
    return at


def _is_of_units(content: str) -> bool:
    r"""km\,h^{-1}, m\cdot s^{-2}: words of units, spaces of LaTeX and exponents; a single letter is none."""
    words = re.findall(r"[A-Za-z]+", _UNIT_MARKS.sub(" ", content))
    return (len(words) > 1 or not tables.UNITS.isdisjoint(words)) and {*words} <= tables.UNITS | tables.LONE_UNITS


def _word(run: str, upright: bool) -> Iterator[Token]:
    """A run of letters: one word, or a product of letters."""
    lower = run.lower()
    if run in _PLAIN_NAMES and not (upright and run in tables.UNITS):
        yield Token("command", run)
    elif upright or lower in ("and", "or"):
        yield Token("word", run, upright=upright)
    elif len(run) == 1:
        yield Token("letter", run)
    elif run in tables.UNITS or lower in _KNOWN or (len(run) >= 5 and not _starts_with_name(run)):
        yield Token("word", run)
    elif name := _starts_with_name(run):
        yield Token("command", name)
        for letter in run[len(name) :]:
            yield Token("letter", letter)
    else:
        yield from (Token("letter", letter) for letter in run)


def _starts_with_name(run: str) -> str | None:
    """The function that a run like `sinx` begins with; one letter may follow it."""
    return next((name for name in sorted(_PLAIN_NAMES, key=len) if run[:-1] == name and len(name) > 1), None)

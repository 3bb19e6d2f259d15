r"""Equals signs in an answer: in `x = 5` the answer is 5 and x its name; `n + 1 = 13` is an equation."""

import re
from dataclasses import dataclass

from apo_lightning.rewards.structure import sides_of_equals

_GREEK = (
    "alpha|beta|gamma|delta|epsilon|varepsilon|zeta|eta|theta|vartheta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon"
    "|phi|varphi|chi|psi|omega|Gamma|Delta|Theta|Lambda|Xi|Sigma|Upsilon|Phi|Psi|Omega|ell|hbar"
)
_ACCENTS = "hat|bar|tilde|vec|dot|ddot|overline|overrightarrow|widehat|mathcal|mathbb|mathbf|boldsymbol|text"
_LETTER = rf"(?:[A-Za-z]|\\(?:{_GREEK})(?![A-Za-z]))"
_INDEX = r"_\s*(?:\{[^{}=]*\}|[A-Za-z0-9]|\\[A-Za-z]+)"
_MARKS = rf"(?:\s*(?:{_INDEX}|'+|\^\s*\{{\s*(?:\\prime\s*)+\}}|\^\s*(?:\\prime|\*)))*"
_ANGLE = r"(?:m\s*)?\\angle\s*(?:\{\s*)?[A-Z]{1,3}(?:\s*\})?"
# A product (ab, n(n + 1)) is not a name, but the points of a segment (AB) and words are.
_WORD = r"[A-Z]{2,4}|[A-Z][a-z]{2,}(?:\s+[A-Za-z]+)*|(?!abcd|wxyz)[a-z]{4,}(?:\s+[a-z]+)*|[\u4e00-\u9fff]+"
_FUNCTION = rf"[fghFGHPE]{_MARKS}(?:\^\s*\{{\s*-1\s*\}})?\s*\([^()=]*(?:=[^()=]*)?\)"
_APPLIED = rf"{_LETTER}{_MARKS}\s*\(\s*-?[A-Za-z0-9]+\s*(?:,\s*-?[A-Za-z0-9]+\s*)*\)"
_SINGLE = rf"(?:\\(?:{_ACCENTS})\s*\{{[^{{}}=]*\}}|{_LETTER}|{_WORD}){_MARKS}|{_ANGLE}|{_FUNCTION}|{_APPLIED}"
_LENGTHS = r"\|\s*[A-Z]{2}\s*\||\\frac\s*\{\s*[A-Z]{2}\s*\}\s*\{\s*[A-Z]{2}\s*\}"
_NAME = re.compile(
    rf"(?:{_SINGLE})|{_LENGTHS}|\(\s*{_LETTER}{_MARKS}(?:\s*,\s*{_LETTER}{_MARKS})+\s*\)|\[[A-Z]{{3,6}}\]"
)
_MAX_SIDES = 8


@dataclass(frozen=True, slots=True)
class Named:
    """An answer split at its equals signs."""

    names: tuple[str, ...]
    """Names on one side of an equals sign; empty for an expression or an equation without a lone name."""
    value: str
    """The first side that is not a name; the whole answer where there is no equals sign."""
    others: tuple[str, ...] = ()
    """The other sides that are not names; where there are any, the answer is an equation."""


def read_names(answer: str) -> Named:
    r"""Separate the names in an answer from its value.

    A name is a letter or word with indices and accents, a function of something, an angle, a segment, or a point of
    letters. A sum, a multiple or a power is not.

    Example:
        >>> read_names("x = 2 + 3 = 5")
        Named(names=('x',), value='2 + 3', others=('5',))
        >>> read_names("2x = 5").names, read_names("n + 1 = 13").names, read_names("5 = x").names
        ((), (), ('x',))
    """
    if "=" not in answer and r"\in" not in answer:
        return Named((), answer)
    sides = sides_of_equals(answer)
    if not 1 < len(sides) <= _MAX_SIDES or not all(sides):
        return Named((), answer)
    values = [side for side in sides if len(side) > 64 or not _NAME.fullmatch(side)] or sides[-1:]
    names = ["".join(side.split()) for side in sides if side not in values]
    return Named(tuple(names), values[0], tuple(values[1:]))

"""An answer as it is written → a sympy expression, by math-verify's grammar, mended where that misreads."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

# No removal of units: it takes every last letter for one, so that 37/4 m, with a mass m, would equal 37/4.
_NORMALIZATION = NormalizationConfig(units=False, malformed_operators=True, nits=True, boxed="none")
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_MISREAD = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\gamma(?![A-Za-z])", r"\\upsilon "),  # read as Euler's constant
        (r"\\Gamma(?![A-Za-z])(?!\s*\()", r"\\Upsilon "),
        (r"(?<![A-Za-z\\])E(?=\s*_)", r"\\Xi "),  # as Euler's number, which has no index
        (r"(\\[A-Za-z]+(?:\{[A-Za-z]*\})?)|I", lambda match: match[1] or r"\Im "),  # as √-1, and its index is dropped
        (r"\^\s*(?:\{\s*T\s*\}|T(?![A-Za-z]))", r"^{\\Theta}"),  # as a transposition, which is dropped too
        (r"\\odot(?![A-Za-z])", "sun"),
        (r"''", r"^{\\prime \\prime}"),  # a derivative's dashes are dropped
        (r"'", r"^{\\prime}"),
    )
)
_FUNCTION_OF_DEGREES = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![A-Za-z])")
_DEGREES = re.compile(r"(\([^()]*\)|\{[^{}]*\}|[0-9]+(?:\.[0-9]+)?|\\?[A-Za-z]+)\s*\^\\circ(?![A-Za-z])")
_DECIMAL = re.compile(r"(?<![\w.])([0-9]*)\.([0-9]+)")
_MIN_SIGNIFICANT_DIGITS = 6
"""The limit of `exact`: a decimal of fewer digits is exact, one of at least so many may be a rounding."""


@dataclass(frozen=True)
class Reading:
    """An answer as it was read."""

    text: str
    value: Any | None
    """The sympy expression; None for what cannot be read."""
    rounding: float
    """The relative error that its longest decimal allows; 0 where none is long enough to be a rounding."""


def read(answer: str) -> Reading:
    """What an answer says, which may be nothing."""
    for pattern, replacement in _MISREAD:
        answer = pattern.sub(replacement, answer)
    if _FUNCTION_OF_DEGREES.search(answer):
        answer = _DEGREES.sub(r"(\1 \\cdot \\frac{\\pi}{180})", answer)
    text = normalize_latex(answer, _NORMALIZATION)
    try:
        value = latex2sympy(text, is_real=True, normalization_config=None, conversion_config=_CONVERSION)
    except MemoryError:
        raise
    except Exception:
        value = None
    return Reading("".join(text.split()), value, _rounding(text))


read_gold = lru_cache(maxsize=256)(read)  # the completions of a group share their gold


def _rounding(text: str) -> float:
    """Half a unit in the last place of a decimal, relative to it."""
    digits = ("".join(decimal).lstrip("0") for decimal in _DECIMAL.findall(text))
    return max(
        (0.5 / float(f"{d[0]}.{d[1:17]}") * 10.0 ** (1 - len(d)) for d in digits if len(d) >= _MIN_SIGNIFICANT_DIGITS),
        default=0.0,
    )

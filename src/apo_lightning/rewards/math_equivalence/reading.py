"""Answer text → sympy expression, by math-verify's parser with corrections for what it misreads."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

# No removal of units: it takes every last letter for a unit, so that 37/4 m, with a mass m, would equal 37/4.
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
"""As in `rewards.exact`: a decimal with fewer digits is exact, one with at least this many may be a rounding."""


@dataclass(frozen=True)
class Reading:
    """A parsed answer."""

    text: str
    value: Any | None
    """The sympy expression; None where the answer cannot be parsed."""
    rounding: float
    """Relative rounding error of the longest decimal; 0 where none is long enough to be a rounding."""


def read(answer: str) -> Reading:
    """Parse an answer; the result may be empty."""
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
    """Half a unit in the last place of a long decimal, relative to its value."""
    digits = ("".join(decimal).lstrip("0") for decimal in _DECIMAL.findall(text))
    return max(
        (0.5 / float(f"{d[0]}.{d[1:17]}") * 10.0 ** (1 - len(d)) for d in digits if len(d) >= _MIN_SIGNIFICANT_DIGITS),
        default=0.0,
    )

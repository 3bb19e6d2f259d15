"""Rational numbers, read from LaTeX and compared exactly, without floats or another process."""

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from apo_lightning.rewards.normalise import without_unit

MIN_SIGNIFICANT_DIGITS = 6
"""A decimal with at least this many significant digits equals any number that rounds to it."""
MAX_NUMBER_CHARS = 4096
"""Below 4300, the number of digits above which int(str) raises."""

_DECIMAL = r"((?:[0-9]+\.?[0-9]*+|\.[0-9]+))"
_SIGNED = rf"([-+]?){_DECIMAL}"
_FRACTION = rf"\\frac\s*\{{\s*{_SIGNED}\s*\}}\s*\{{\s*{_SIGNED}\s*\}}"
_INTEGER_FRACTION = r"\\frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}"
# At most three digits: a larger power of ten would take memory here; it goes to the workers, which can be killed.
_POWER = r"10\s*\^\s*(?:\{\s*([-+]?[0-9]{1,3})\s*\}|([0-9]))"
_TIMES = r"\s*(?:\\times|\\cdot|\*)\s*"

_THOUSANDS = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})+)(?![0-9,])(?!.*,)", re.DOTALL)
_IS_DECIMAL = re.compile(_DECIMAL)
_IS_RATIO = re.compile(rf"{_SIGNED}\s*/\s*{_DECIMAL}")
_RATIO_IN_THOUSANDS = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})*+|[0-9]+)\s*/\s*([0-9]{1,3}(?:,[0-9]{3})*+|[0-9]+)")
_IS_FRACTION = re.compile(_FRACTION)
_IS_MIXED = re.compile(rf"([0-9]+)(?:\s*{_INTEGER_FRACTION}|\s+([0-9]+)\s*/\s*([0-9]+))")
_IS_SCIENTIFIC = re.compile(rf"(?:{_DECIMAL}{_TIMES})?{_POWER}|{_POWER}{_TIMES}{_DECIMAL}")
_IS_REPEATING = re.compile(r"([0-9]+)\.([0-9]*)\\(?:overline|bar)\s*\{\s*([0-9]+)\s*\}")


@dataclass(frozen=True, slots=True)
class Number:
    """A rational number and the precision it was written with."""

    value: Fraction
    last_place: Fraction | None = None
    """One unit in the last place of a decimal; None for an integer and other notations."""
    significant_digits: int = 0
    """Digits of a decimal without leading zeros; 0 for other notations."""


def same_number(left: Number, right: Number) -> bool:
    """True for equal numbers, and for a decimal of at least six digits and a number that rounds to it."""
    places = [one.last_place for one in (left, right) if one.significant_digits >= MIN_SIGNIFICANT_DIGITS]
    return abs(left.value - right.value) <= max(filter(None, places), default=0) / 2


@lru_cache(maxsize=4096)
def read_number(text: str, lone_units: bool = False) -> Number | None:
    r"""The rational number in a normalised text, without its unit; None for any other text or one that is too long.

    Understood are integers with or without thousands commas, decimals (also repeating ones), a/b, \frac, mixed numbers
    with a fraction below 1, and products with a power of ten.
    `lone_units` treats a single letter after the number as a unit, as in "5 m".

    Example:
        >>> read_number(r"1\frac{4}{5}").value, read_number(r"-6 \times 10^{-5}").value, read_number("1,080 cm").value
        (Fraction(9, 5), Fraction(-3, 50000), Fraction(1080, 1))
    """
    if len(text) > MAX_NUMBER_CHARS:
        return None
    text = without_unit(text, lone_units)
    is_negative = text.startswith("-")
    body = text.removeprefix("-" if is_negative else "+").lstrip()
    if "/" in body and _RATIO_IN_THOUSANDS.fullmatch(body):
        body = body.replace(",", "")
    elif thousands := _THOUSANDS.match(body):
        body = thousands.group(1).replace(",", "") + body[thousands.end() :]
    number = _read_unsigned(body)
    return replace(number, value=-number.value) if number and is_negative else number


def _read_unsigned(body: str) -> Number | None:
    if _IS_DECIMAL.fullmatch(body):
        return _decimal(body)
    if match := _IS_SCIENTIFIC.fullmatch(body):
        before, power, bare_power, power_first, bare_power_first, after = match.groups()
        number = _decimal(before or after or "1")
        scale = Fraction(10) ** int(power or bare_power or power_first or bare_power_first)
        last_place = None if number.last_place is None else number.last_place * scale
        return Number(number.value * scale, last_place, number.significant_digits)
    if match := _IS_MIXED.fullmatch(body):
        whole, *parts = (int(group) for group in match.groups() if group is not None)
        # 2 \frac{3}{2} is a product, not a mixed number.
        return Number(whole + Fraction(*parts)) if parts[0] < parts[1] else None
    if match := _IS_REPEATING.fullmatch(body):
        whole, start, period = match.groups()
        nines = 10 ** len(period) - 1
        return Number(int(whole) + Fraction(int(start or "0") * nines + int(period), 10 ** len(start) * nines))
    if match := _IS_FRACTION.fullmatch(body) or _IS_RATIO.fullmatch(body):
        sign, top, *bottom_sign, bottom = match.groups()
        if Fraction(bottom) == 0:
            return None
        is_negative = (sign == "-") != (bottom_sign == ["-"])
        return Number((-1 if is_negative else 1) * Fraction(top) / Fraction(bottom))
    return None


def _decimal(text: str) -> Number:
    _, _, places = text.partition(".")
    if not places:
        return Number(Fraction(text))
    return Number(Fraction(text), Fraction(1, 10 ** len(places)), len(text.replace(".", "").lstrip("0")))

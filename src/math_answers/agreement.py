r"""Whether two expressions have the same value: exactly where they are rational, else at points."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from math_answers.nodes import Node, TooLargeError
from math_answers.tables import LONE_UNITS
from math_answers.values import MOST_PRECISION, NUM_POINTS, Evaluation, Point, exact, has_i, names_in, points

FEWEST_POINTS = 4
FEWEST_DIGITS = 60
DIGITS_A_MAGNITUDE = 2.2
"""More digits for each power of ten that values have on the way: terms that differ so much are still told apart."""
_KINDS = ("vector", "integer", "rounded", "small", "symbol")
"""Of a symbol that occurs in several ways the first decides at which values it is compared."""


def same_value(gold: Node, answer: Node) -> bool:
    """Whether two expressions have the same value; raises TooLargeError."""
    one, other = exact(gold), exact(answer)
    if one is not None and other is None:
        other = exact(_without_letters(answer))
    if one is not None and other is not None:
        if one == other:
            return True
        return abs(one - other) <= _tolerance(gold, answer)
    return agree(gold, answer)


def _without_letters(answer: Node) -> Node:
    """The number in front of single letters that are units, as in 5 m/s: beside a gold number they are no variables."""
    if answer.head == "divide" and _is_unit(answer.args[1]):
        return _without_letters(answer.args[0])
    if answer.head == "multiply":
        rest = [part for part in answer.args[1:] if not _is_unit(part)]
        return answer if rest else _without_letters(answer.args[0])
    return answer


def _is_unit(node: Node) -> bool:
    if node.head == "power":
        return _is_unit(node.args[0]) and exact(node.args[1]) is not None
    if node.head in ("multiply", "divide", "dot"):
        return all(map(_is_unit, node.args))
    return node.head == "symbol" and node.args[0] in LONE_UNITS


def _tolerance(*nodes: Node) -> Fraction:
    """Half a unit in the last place of a decimal that is the whole answer."""
    return max((node.args[1] / 2 for node in nodes if node.head == "number" and node.args[1]), default=Fraction(0))


def agree(one: Node, other: Node) -> bool:
    """Whether two expressions agree at points, wherever both are real; where i occurs, at complex values too."""
    names: dict[str, str] = {}
    for kind, name in itertools.chain(names_in(one), names_in(other)):
        names[name] = min(kind, names.get(name, kind), key=_KINDS.index)
    is_complex, tolerance, seen = has_i(one) or has_i(other), _tolerance(one, other), 0
    for index, point in enumerate(points(names)):
        if seen and (not names or (index >= NUM_POINTS and seen >= FEWEST_POINTS)):
            break
        is_same = at_point(one, other, point, partial(_is_close, is_complex=is_complex, tolerance=tolerance))
        if is_same is False:
            return False
        seen += is_same is True
    return seen >= (FEWEST_POINTS if names else 1)


def at_point(one: Node, other: Node, point: Point, compare: Callable[[Any, Any, int], Any]) -> Any:
    """`compare` of both values, and of the precision that they have; None where one is not defined."""
    precision = FEWEST_DIGITS
    while True:
        with mpmath.workdps(precision):
            evaluation = Evaluation(point)
            try:
                left, right = evaluation.of(one), evaluation.of(other)
            except (ZeroDivisionError, ValueError, OverflowError, TypeError):
                return None
            needed = FEWEST_DIGITS + int(DIGITS_A_MAGNITUDE * evaluation.size)
            if needed > MOST_PRECISION:
                raise TooLargeError("a value of too many digits")
            if needed <= precision:
                return compare(left, right, precision)
        precision = needed


def _is_close(left: Any, right: Any, precision: int, *, is_complex: bool, tolerance: Fraction) -> bool | None:
    if isinstance(left, list) or isinstance(right, list):
        if not (isinstance(left, list) and isinstance(right, list)):
            return False
        parts = [
            _is_close(*pair, precision, is_complex=True, tolerance=tolerance) for pair in zip(left, right, strict=True)
        ]
        return False not in parts
    if mpmath.isnan(left) or mpmath.isnan(right):
        return None
    imaginary = abs(mpmath.im(left)) + abs(mpmath.im(right))
    if not is_complex and imaginary > mpmath.mpf(10) ** (10 - precision):
        return None
    if mpmath.isinf(left) or mpmath.isinf(right):
        return bool(left == right)
    if tolerance:
        return bool(abs(left - right) <= mpmath.mpf(tolerance.numerator) / tolerance.denominator)
    return bool(abs(left - right) <= max(abs(left), abs(right), 1) * mpmath.mpf(10) ** (40 - precision))

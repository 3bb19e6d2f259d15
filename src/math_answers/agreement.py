r"""Whether two expressions have the same value: exactly where they are rational, else at points."""

import itertools
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from typing import Any

import mpmath

from math_answers.nodes import Node, TooLargeError
from math_answers.tables import LONE_UNITS
from math_answers.values import (
    MOST_PRECISION,
    NUM_POINTS,
    STEPPED,
    Evaluation,
    Point,
    constants_in,
    exact,
    has_i,
    names_in,
    points,
    points_of_change,
)

FEWEST_POINTS = 4
FEWEST_DIGITS = 60
DIGITS_A_MAGNITUDE = 2.2
"""More digits for each power of ten that values have on the way: terms that differ so much are still told apart."""
_KINDS = ("vector", "integer", "rounded", "small", "kinked", "symbol")
"""Kinds of symbols. Where one occurs in several ways, the first decides at which values it is compared."""


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
    """Whether an answer agrees with a gold at points, wherever this is real; where i occurs, at complex values too."""
    names: dict[str, str] = {}
    for kind, name in itertools.chain(names_in(one), names_in(other)):
        names[name] = min(kind, names.get(name, kind), key=_KINDS.index)
    is_complex, tolerance, seen = has_i(one) or has_i(other), _tolerance(one, other), 0
    compare = partial(_is_close, is_complex=is_complex, tolerance=tolerance, has_names=bool(names))
    for index, point in enumerate(points(names)):
        if seen and (not names or (index >= NUM_POINTS and seen >= FEWEST_POINTS)):
            break
        is_same = (at_point if index < 2 * NUM_POINTS else at_change)(one, other, point, compare)
        if is_same is False:
            return False
        seen += is_same is True
    if seen < (FEWEST_POINTS if names else 1):
        return False
    return all(at_change(one, other, point, compare) is not False for point in changes(one, other, names))


def changes(one: Node, other: Node, names: dict[str, str]) -> Iterator[Point]:
    """`points_of_change` of both expressions, if one of them has steps."""
    if any(kind in STEPPED for kind in names.values()):
        yield from points_of_change(names, {*constants_in(one), *constants_in(other)})


def at_change(one: Node, other: Node, point: Point, compare: Callable[[Any, Any, int], Any]) -> Any:
    """`at_point`; None where the values are too large."""
    try:
        return at_point(one, other, point, compare)
    except TooLargeError:
        return None


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


def _is_close(
    left: Any, right: Any, precision: int, *, is_complex: bool, tolerance: Fraction, has_names: bool
) -> bool | None:
    if isinstance(left, list) or isinstance(right, list):
        if not (isinstance(left, list) and isinstance(right, list)):
            return False
        close = partial(_is_close, precision=precision, is_complex=True, tolerance=tolerance, has_names=has_names)
        parts = [close(*pair) for pair in zip(left, right, strict=True)]
        return False not in parts
    least = mpmath.mpf(10) ** (10 - precision)
    if any(mpmath.isnan(value) or (abs(mpmath.im(value)) > least and not is_complex) for value in (left, right)):
        # Where the gold has a value the answer has one too: ln(−x) is not ln|x|.
        return None if mpmath.isnan(left) or abs(mpmath.im(left)) > least else False
    if mpmath.isinf(left) or mpmath.isinf(right):
        return None if has_names and left == right else bool(left == right)  # infinite for any value says little
    if tolerance:
        return bool(abs(left - right) <= mpmath.mpf(tolerance.numerator) / tolerance.denominator)
    return bool(abs(left - right) <= max(abs(left), abs(right), 1) * mpmath.mpf(10) ** (40 - precision))

r"""Sets of real numbers as intervals: unions, inequalities, set builders."""

from dataclasses import dataclass, replace
from typing import Any

import mpmath

from math_answers.nodes import Node
from math_answers.values import Evaluation, names_in

OPERATORS = frozenset(["<", ">", "<=", ">=", "!="])
_TURNED = str.maketrans("<>", "><")
DIGITS = 60


@dataclass(frozen=True)
class Piece:
    """An interval, or a point where both ends are the same."""

    low: Any
    is_low_closed: bool
    high: Any
    is_high_closed: bool

    def is_empty(self) -> bool:
        """Whether no number lies between the ends, within rounding."""
        if _equal(self.low, self.high):
            return not (self.is_low_closed and self.is_high_closed)
        return not self.low < self.high  # also where one is not a number


EVERYTHING = [Piece(-mpmath.inf, False, mpmath.inf, False)]


def is_set(node: Node, as_interval: bool = False) -> bool:
    """Whether it can be read as a set of reals; `as_interval`: also a pair in parentheses, and a list of numbers."""
    try:
        with mpmath.workdps(DIGITS):
            return pieces(node, as_interval) is not None
    except (ValueError, ZeroDivisionError, TypeError, KeyError, OverflowError):
        return False


def same(one: Node, other: Node) -> bool:
    """Whether both are the same set."""
    names = _free_names(one), _free_names(other)
    if all(names) and names[0] != names[1]:
        return False
    with mpmath.workdps(DIGITS):
        left, right = pieces(one, True), pieces(other, True)
        if left is None or right is None:
            return False
        left, right = _merged(left), _merged(right)
        return len(left) == len(right) and all(
            _equal(a.low, b.low)
            and _equal(a.high, b.high)
            and (a.is_low_closed, a.is_high_closed) == (b.is_low_closed, b.is_high_closed)
            for a, b in zip(left, right, strict=True)
        )


def _free_names(node: Node) -> set[str]:
    """The names that a condition is on; that of a set builder says nothing."""
    if node.head == "builder":
        return set()
    if node.head in ("union", "intersection", "difference"):
        return set().union(*map(_free_names, node.args))
    return {name for _, name in names_in(node)}


def pieces(node: Node, as_interval: bool) -> list[Piece] | None:
    """The intervals of a set of reals; None for anything else."""
    head, args = node.head, node.args
    if head == "words":
        return EVERYTHING if "".join(args).replace(" ", "").lower() == "allrealnumbers" else None
    if head == "interval":
        return _piece(args[1], args[0][0] == "[", args[2], args[0][1] == "]")
    if head == "tuple" and len(args) == 2 and as_interval:
        return _piece(args[0], False, args[1], False)
    if head == "set":
        values = [_constant(arg) for arg in args]
        return [Piece(value, True, value, True) for value in values] if as_interval else None
    if head in ("union", "intersection", "difference"):
        left, right = (pieces(arg, True) for arg in args)
        if left is None or right is None:
            return None
        if head == "union":
            return left + right
        return _intersection(left, right if head == "intersection" else _complement(right))
    if head in ("and", "or") or (head == "or list" and all(arg.head == "relation" for arg in args)):
        found = [part for arg in args if (part := pieces(arg, True)) is not None]
        if len(found) < len(args) or len({name for arg in args for _, name in names_in(arg)}) != 1:
            return None
        total = found[0]
        for part in found[1:]:
            total = total + part if head != "and" else _intersection(total, part)
        return total
    if head == "relation":
        return None if node.args[0] == ("=",) and not as_interval else _of_relation(node)
    if head == "builder":
        condition = args[1]
        names = {name for _, name in names_in(condition)}
        return pieces(condition, True) if args[0].head == "symbol" and names == {args[0].args[0]} else None
    return None


def _piece(low: Node, is_low_closed: bool, high: Node, is_high_closed: bool) -> list[Piece] | None:
    """None where the ends do not ascend: all such pairs would be the empty set."""
    piece = Piece(_constant(low), is_low_closed, _constant(high), is_high_closed)
    return None if piece.is_empty() else [piece]


def _constant(node: Node) -> Any:
    while node.head == "quantity":
        node = node.args[0]
    if any(True for _ in names_in(node)):
        raise ValueError("a symbol")
    value = Evaluation({}).of(node)
    if mpmath.im(value) != 0:
        raise ValueError("a complex number")
    return mpmath.re(value)


def _of_relation(node: Node) -> list[Piece] | None:
    operators, sides = node.args[0], node.args[1:]
    if operators == ("=",) and sides[0].head == "symbol":
        value = _constant(sides[1])
        return [Piece(value, True, value, True)]
    if operators == ("in",) and sides[0].head == "symbol":
        return pieces(sides[1], True)
    if not set(operators) <= OPERATORS:
        return None
    total = EVERYTHING
    for operator, left, right in zip(operators, sides, sides[1:], strict=False):
        part = _inequality(operator, left, right)
        if part is None:
            return None
        total = _intersection(total, part)
    return total


def _inequality(operator: str, left: Node, right: Node) -> list[Piece] | None:
    """The solutions, where one side is linear in one symbol, or its absolute value, and the other a constant."""
    if _has_name(right):
        left, right = right, left
        operator = operator.translate(_TURNED)
    names = {name for _, name in names_in(left)}
    if len(names) != 1 or _has_name(right):
        return None
    (name,) = names
    bound = _constant(right)
    if left.head == "call" and left.args[0] == "abs":
        slope, start = _linear(left.args[1], name)
        if bound < 0:
            return None
        ends = sorted([(bound - start) / slope, (-bound - start) / slope])
        inside = [Piece(ends[0], operator == "<=" or operator == ">", ends[1], operator == "<=" or operator == ">")]
        return inside if operator in ("<", "<=") else None if operator == "!=" else _complement(inside)
    slope, start = _linear(left, name)
    end = (bound - start) / slope
    if slope < 0:
        operator = operator.translate(_TURNED)
    if operator == "!=":
        return _complement([Piece(end, True, end, True)])
    if operator[0] == "<":
        return [Piece(-mpmath.inf, False, end, operator == "<=")]
    return [Piece(end, operator == ">=", mpmath.inf, False)]


def _has_name(node: Node) -> bool:
    return any(True for _ in names_in(node))


def _linear(node: Node, name: str) -> tuple[Any, Any]:
    """Slope and value at 0."""
    values = [Evaluation({name: mpmath.mpf(at)}).of(node) for at in (0, 1, 2, 7)]
    slope = values[1] - values[0]
    if slope == 0 or not all(_equal(values[0] + at * slope, value) for at, value in ((2, values[2]), (7, values[3]))):
        raise ValueError("not linear")
    return slope, values[0]


def _equal(one: Any, other: Any) -> bool:
    if mpmath.isinf(one) or mpmath.isinf(other):
        return bool(one == other)
    return bool(abs(one - other) <= mpmath.mpf(10) ** -40 * (1 + abs(one)))


def _merged(found: list[Piece]) -> list[Piece]:
    """Without pieces that are empty or touch one another, in order."""
    merged: list[Piece] = []
    for piece in sorted(found, key=lambda piece: (piece.low, not piece.is_low_closed)):
        if piece.is_empty():
            continue
        last = merged[-1] if merged else None
        if last is None or not Piece(last.high, not last.is_high_closed, piece.low, not piece.is_low_closed).is_empty():
            merged.append(piece)
        elif _equal(piece.high, last.high):
            merged[-1] = replace(last, is_high_closed=last.is_high_closed or piece.is_high_closed)
        elif piece.high > last.high:
            merged[-1] = replace(last, high=piece.high, is_high_closed=piece.is_high_closed)
    return merged


def _intersection(left: list[Piece], right: list[Piece]) -> list[Piece]:
    found = []
    for one in left:
        for other in right:
            low, is_low_closed = max((one.low, not one.is_low_closed), (other.low, not other.is_low_closed))
            high, is_high_closed = min((one.high, one.is_high_closed), (other.high, other.is_high_closed))
            found.append(Piece(low, not is_low_closed, high, is_high_closed))
    return [piece for piece in found if not piece.is_empty()]


def _complement(found: list[Piece]) -> list[Piece]:
    result, low, is_closed = [], -mpmath.inf, False
    for piece in _merged(found):
        if piece.low != -mpmath.inf:
            result.append(Piece(low, is_closed, piece.low, not piece.is_low_closed))
        low, is_closed = piece.high, not piece.is_high_closed
    if low != mpmath.inf:
        result.append(Piece(low, is_closed, mpmath.inf, False))
    return result

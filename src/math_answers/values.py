r"""Numbers of an expression: exact where it is rational, else at points, with a precision that follows its size."""

import contextlib
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from itertools import islice, product
from typing import Any

import mpmath

from math_answers.nodes import Node, TooLargeError, number

MOST_DIGITS = 20_000
"""The longest number that is computed exactly."""
MOST_PRECISION = 3_000
"""Digits at which values are compared; one that needs more is not computed."""
MOST_TERMS = 1_000
MOST_INNER_TERMS = 30
"""The longest sum inside of a sum."""
MOST_WORK = 400_000
"""Operations at one point, times the digits that they are computed to."""
INTEGER_CALLS = frozenset(["factorial", "double factorial", "binomial", "gcd", "lcm", "sum", "prod", "mod"])
OPERATIONS = frozenset(["add", "multiply", "dot", "cross", "divide", "power"])
_KINDS = {
    **dict.fromkeys(INTEGER_CALLS, "integer"), **dict.fromkeys(("floor", "ceiling"), "rounded"), "exp": "small",
    **dict.fromkeys(("max", "min", "abs", "sgn"), "kinked"),
}  # fmt: skip
TRIGONOMETRY = frozenset(["sin", "cos", "tan", "cot", "sec", "csc", "cis"])
Point = Mapping[str, Any]


# ---------------------------------------------------------------------- exact


@lru_cache(maxsize=8192)
def exact(node: Node) -> Fraction | None:
    """The value of a rational expression; None for any other. Raises TooLargeError."""
    return _exact(node, {})


def _exact(node: Node, bound: Mapping[Node, Fraction]) -> Fraction | None:
    if node in bound:
        return bound[node]
    head, args = node.head, node.args
    if head == "number":
        return args[0]
    if head == "quantity":
        return None
    if head == "call" and args[0] in ("sum", "prod"):
        return _exact_sum(node, bound)
    operands = [arg for arg in args if isinstance(arg, Node)]
    if head not in OPERATIONS and head != "call":
        return None
    values = [_exact(operand, bound) for operand in operands]
    if any(value is None for value in values):
        return None
    found = _exact_call(args[0], values) if head == "call" else _exact_operation(head, values)
    if found is not None and _num_digits(found) > MOST_DIGITS:
        raise TooLargeError("a number of too many digits")
    return found


def _num_digits(value: Fraction) -> float:
    return 0.30103 * (value.numerator.bit_length() + value.denominator.bit_length())


def _exact_operation(head: str, values: list[Any]) -> Fraction | None:
    if head == "add":
        return sum(values, Fraction(0))
    if head in ("multiply", "dot", "cross"):
        # A fraction has at least the digits of its size, so the product is not made to find that it has too many.
        size = sum(value.numerator.bit_length() - value.denominator.bit_length() for value in values)
        if all(values) and 0.30103 * (abs(size) - len(values)) > MOST_DIGITS:
            raise TooLargeError("a product of too many digits")
        return math.prod(values, start=Fraction(1))
    left, right = values
    if head == "divide":
        return None if right == 0 else left / right
    if right.denominator != 1:
        return None
    if left == 0:
        return None if right <= 0 else Fraction(0)
    if abs(left) == 1:
        return left if int(right) % 2 else Fraction(1)
    if int(right).bit_length() > 40 or abs(int(right)) * max(_num_digits(left), 0.31) > MOST_DIGITS:
        raise TooLargeError("a power of too many digits")
    return left ** int(right)


def _exact_call(name: str, values: list[Any]) -> Fraction | None:
    whole = all(value.denominator == 1 for value in values)
    if name == "abs":
        return abs(values[0])
    if name in ("floor", "ceiling"):
        return Fraction((math.floor if name == "floor" else math.ceil)(values[0]))
    if name in ("max", "min"):
        return (max if name == "max" else min)(values)
    if not whole:
        return None
    integers = [int(value) for value in values]
    if name in ("factorial", "double factorial") and integers[0] >= 0:
        if integers[0] > 6000:
            raise TooLargeError("a factorial of too many digits")
        return Fraction(math.factorial(integers[0]) if name == "factorial" else math.prod(range(integers[0], 0, -2)))
    if name == "binomial" and min(integers) >= 0:
        if integers[0] > 20_000:
            raise TooLargeError("a binomial of too many digits")
        return Fraction(math.comb(*integers))
    if name in ("gcd", "lcm"):
        return Fraction((math.gcd if name == "gcd" else math.lcm)(*integers))
    if name == "mod" and integers[1] > 0:
        return Fraction(integers[0] % integers[1])
    return None


def _exact_sum(node: Node, bound: Mapping[Node, Fraction]) -> Fraction | None:
    name, variable, low, high, body = node.args
    ends = [end for end in (_exact(low, bound), _exact(high, bound)) if end is not None and end.denominator == 1]
    if len(ends) != 2:
        return None
    if ends[1] - ends[0] > (MOST_INNER_TERMS if bound else MOST_TERMS):
        raise TooLargeError("a sum of too many terms")
    if len(bound) > 1:
        raise TooLargeError("a sum in a sum in a sum")
    total = Fraction(0 if name == "sum" else 1)
    for index in range(int(ends[0]), int(ends[1]) + 1):
        term = _exact(body, {**bound, variable: Fraction(index)})
        if term is None:
            return None
        total = total + term if name == "sum" else total * term
        if _num_digits(total) > MOST_DIGITS:
            raise TooLargeError("a sum of too many digits")
    return total


# ---------------------------------------------------------------------- at a point


class Evaluation:
    """The values of expressions at one point; `size` is the largest exponent of ten on the way."""

    def __init__(self, point: Point) -> None:
        self.point = point
        self.size = 0.0
        self.work = 0

    def of(self, node: Node, degrees: bool = False) -> Any:
        """The value; `degrees`: inside of a trigonometric function, where a degree is π/180."""
        self.work += 1
        if self.work * mpmath.mp.dps > MOST_WORK:
            raise TooLargeError("an expression of too many operations")
        value = self._of(node, degrees)
        if not isinstance(value, list) and value and mpmath.isfinite(value):
            magnitude = _log10(value)
            # What a sum or a sine leaves near 0 may be its rounding, which is smaller with more digits.
            self.size = max(self.size, magnitude if node.head in ("add", "call") else abs(magnitude))
        return value

    def _of(self, node: Node, degrees: bool) -> Any:
        head, args = node.head, node.args
        if head == "number":
            return mpmath.mpf(args[0].numerator) / args[0].denominator
        if head == "constant":
            return {"pi": mpmath.pi, "e": mpmath.e, "i": mpmath.mpc(0, 1), "infinity": mpmath.inf}[args[0]] * 1
        if head in ("symbol", "vector"):
            return self.point[args[0]]
        if head == "quantity":
            value = self.of(args[0])
            return value * mpmath.pi / 180 if degrees and args[1] == "degree" else value
        if head == "call":
            known = exact(node)
            if known is None:
                return self.call(args[0], args[1:])
            # A sum of many terms may be nearer to a constant than its last term is large.
            self.size = max(self.size, _num_digits(Fraction(1, known.denominator)))
            return mpmath.mpf(known.numerator) / known.denominator
        if head not in OPERATIONS:
            raise ValueError(f"{head} has no value")
        values = [self.of(arg, degrees) for arg in args]
        if head == "add":
            return _vector_sum(values) if any(isinstance(v, list) for v in values) else mpmath.fsum(values)
        if head in ("multiply", "dot", "cross"):
            return functools.reduce(functools.partial(_product, head), values)
        left, right = values
        if head == "divide":
            return [part / right for part in left] if isinstance(left, list) else left / right
        if head == "power":
            return self.power(left, right)
        raise ValueError(head)

    def power(self, base: Any, exponent: Any) -> Any:
        """The power; an odd root of a negative number is real."""
        if base:
            self.size = max(self.size, float(abs(exponent)) * abs(_log10(base)))
        if self.size > MOST_PRECISION:
            raise TooLargeError("a power of too many digits")
        if mpmath.im(exponent) == 0 and mpmath.im(base) == 0 and base < 0 and not mpmath.isint(exponent):
            for odd in (3, 5, 7, 9):  # (−8)^{1/3} is −2 where no i occurs
                if mpmath.isint(mpmath.chop(exponent * odd, tol=mpmath.mpf(10) ** (5 - mpmath.mp.dps))):
                    numerator = int(mpmath.nint(exponent * odd))
                    return (-1) ** numerator * abs(base) ** exponent
        return base**exponent

    def call(self, name: str, args: tuple[Node, ...]) -> Any:
        """The value of a function."""
        if name in ("sum", "prod"):
            return self.finite_sum(name, *args)
        values = [self.of(arg, degrees=name in TRIGONOMETRY) for arg in args]
        if name == "norm":
            parts = values[0] if isinstance(values[0], list) else values
            return mpmath.sqrt(mpmath.fsum(abs(part) ** 2 for part in parts))
        first = values[0]
        if any(isinstance(value, list) for value in values):
            return hashed(name, [part for value in values for part in (value if isinstance(value, list) else [value])])
        if name in ("exp", "sinh", "cosh", "tanh", "coth", "sech", "csch", "zeta"):
            self.size = max(self.size, 2 * float(abs(first)) / 2.302)
            if self.size > MOST_PRECISION:
                raise TooLargeError("an exponential of too many digits")
        if name == "factorial":
            if abs(first) > 2000:
                raise TooLargeError("a factorial of too many digits")
            return mpmath.gamma(first + 1)
        if name == "binomial":
            return mpmath.binomial(first, values[1])
        if name == "root":
            return self.power(first, 1 / values[1]) if values[1] != 2 else mpmath.sqrt(first)
        if name in ("log", "ln"):
            return mpmath.log(first) if len(values) == 1 else mpmath.log(first) / mpmath.log(values[1])
        if name in ("gcd", "lcm", "mod"):
            whole = [int(mpmath.nint(mpmath.re(value))) for value in values]
            if any(abs(value - one) > 1e-20 for value, one in zip(values, whole, strict=True)):
                return hashed(name, values if name == "mod" else sorted(values, key=repr))
            return mpmath.mpf(
                whole[0] % whole[1] if name == "mod" else (math.gcd if name == "gcd" else math.lcm)(*whole)
            )
        if name in ("max", "min"):
            return (max if name == "max" else min)(values)
        if name == "cis":
            return mpmath.expj(first)
        if name in ("floor", "ceiling") and abs(first - mpmath.nint(first)) < mpmath.mpf(10) ** (-mpmath.mp.dps // 2):
            return mpmath.nint(first)  # log₃ 9 is 2 but for its rounding
        function = _FUNCTIONS.get(name)
        return hashed(name, values) if function is None else function(first)

    def finite_sum(self, name: str, variable: Node, low: Node, high: Node, body: Node) -> Any:
        """A sum or a product between whole numbers."""
        ends = [int(mpmath.nint(mpmath.re(self.of(end)))) for end in (low, high)]
        if ends[1] - ends[0] > MOST_TERMS:
            raise TooLargeError("a sum of too many terms")
        total = mpmath.mpf(0 if name == "sum" else 1)
        key, before = variable.args[0], self.point
        for index in range(ends[0], ends[1] + 1):
            self.work += 20  # the body is copied
            self.point = {**before, key: mpmath.mpf(index)}
            term = self.of(replaced(body, variable, number(index)))
            total = total + term if name == "sum" else total * term
        self.point = before
        return total


def _log10(value: Any) -> float:
    """log₁₀|value|, to a float's digits: with all of them it would take longer than the value."""
    return float(mpmath.ln(abs(value), prec=53)) / math.log(10)


def replaced(node: Node, old: Node, new: Node) -> Node:
    """The tree with a node exchanged."""
    if node == old:
        return new
    return Node(node.head, tuple(replaced(a, old, new) if isinstance(a, Node) else a for a in node.args))


_FUNCTIONS = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc,
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "arccot": mpmath.acot, "arcsec": mpmath.asec,
    "arccsc": mpmath.acsc, "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh,
    "arsinh": mpmath.asinh, "arcosh": mpmath.acosh, "artanh": mpmath.atanh,
    "sinh": mpmath.sinh, "cosh": mpmath.cosh, "tanh": mpmath.tanh, "coth": mpmath.coth,
    "sech": mpmath.sech, "csch": mpmath.csch, "exp": mpmath.exp, "abs": abs, "floor": mpmath.floor,
    "ceiling": mpmath.ceil, "sgn": mpmath.sign, "zeta": mpmath.zeta, "Re": mpmath.re, "Im": mpmath.im,
    "arg": mpmath.arg,
}  # fmt: skip


def hashed(name: str, values: list[Any]) -> Any:
    """The value of a function of which nothing is known: the same for the same arguments, and else another."""
    text = name + "".join(str(mpmath.nstr(mpmath.mpc(value), 25)) for value in values)
    return mpmath.mpf(int(hashlib.sha256(text.encode()).hexdigest()[:12], 16)) / 2**47 + mpmath.mpf(1) / 7


def _vector_sum(values: list[Any]) -> Any:
    if not all(isinstance(value, list) for value in values):
        raise ValueError("a vector plus a number")
    return [mpmath.fsum(parts) for parts in zip(*values, strict=True)]


def _product(head: str, left: Any, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list):
        if head == "cross":
            (a, b, c), (d, e, f) = left, right
            return [b * f - c * e, c * d - a * f, a * e - b * d]
        if head == "multiply":
            raise ValueError("a product of matrices, which need not commute")
        return mpmath.fsum(one * other for one, other in zip(left, right, strict=True))
    if isinstance(left, list) or isinstance(right, list):
        vector, factor = (left, right) if isinstance(left, list) else (right, left)
        return [part * factor for part in vector]
    return left * right


# ---------------------------------------------------------------------- points


def names_in(node: Any, kind: str = "symbol") -> Iterator[tuple[str, str]]:
    """(kind, name) of the symbols: vector, integer (also above a negative number), rounded, small, kinked or symbol."""
    if not isinstance(node, Node):
        return
    if node.head in ("symbol", "vector"):
        yield ("vector" if node.head == "vector" else kind), node.args[0]
        return
    if node.head == "call":
        kind = _KINDS.get(node.args[0], kind)
    if node.head == "power" and kind in ("symbol", "kinked"):
        base, exponent = node.args
        yield from names_in(base, kind)
        yield from names_in(exponent, "integer" if (exact(base) or 0) < 0 else "small")
        return
    for arg in node.args:
        yield from names_in(arg, kind)


def constants_in(node: Any) -> Iterator[Fraction]:
    """The absolute values of the numbers of an expression, and of its parts without a symbol."""
    if not isinstance(node, Node) or node.head not in OPERATIONS | {"number", "call", "constant"}:
        return
    known = exact(node)
    if known is None and not any(True for _ in names_in(node)):
        with contextlib.suppress(ZeroDivisionError, ValueError, OverflowError, TypeError):  # infinity, a vector
            known = Fraction(str(mpmath.nstr(abs(Evaluation({}).of(node)), 20)))
    yield from () if known is None else [abs(known)]
    for arg in node.args if node.head != "number" else ():
        yield from constants_in(arg)


def has_i(node: Any) -> bool:
    """Whether i occurs, so that complex values count."""
    return isinstance(node, Node) and (
        node == Node("constant", ("i",))
        or (node.head == "call" and node.args[0] == "cis")
        or any(map(has_i, node.args))
    )


_REALS = ("0.7310585786", "1.3247179572", "2.6180339887", "7.3890560989", "23.1406926328", "0.3183098862")
_SMALL = ("0.7310585786", "0.3183098862", "0.9159655942", "0.1234567891", "0.5772156649", "0.4142135624")
STEPPED = ("integer", "rounded", "kinked")
"""Kinds of symbols whose expressions change suddenly."""
NUM_POINTS = 10
MOST_POINTS, MOST_CONSTANT = 600, 10**30
"""The most `points_of_change`, and the largest constant that they follow."""
_INTEGERS = (6, 10, 15, 4, 9, 12, 8, 14, 5, 7)


def points(names: dict[str, str]) -> Iterator[Point]:
    """Points at which expressions are compared, of either sign.

    Behind the first ten all are between -1 and 1; behind twice as many some are large, for roots and logarithms of
    differences.
    """
    order = sorted(names)
    for index in range(4 * NUM_POINTS):
        point: dict[str, Any] = {}
        for place, name in enumerate(order):
            digest = int(hashlib.sha256(f"{name} {index}".encode()).hexdigest()[:8], 16)
            if names[name] == "integer" or (names[name] == "rounded" and index % 2):
                point[name] = mpmath.mpf(_INTEGERS[(index + 3 * place) % len(_INTEGERS)])
            elif names[name] == "vector":
                is_unit = name.startswith("unit")
                axes = [int(name == f"unit vector {axis}") for axis in "ijk"]
                parts = axes if is_unit else [mpmath.mpf((digest >> 4 * axis) % 97 + 1) / 31 for axis in range(3)]
                point[name] = [mpmath.mpf(part) for part in parts]
            else:
                is_large = index >= 2 * NUM_POINTS and names[name] != "small"
                reals = _SMALL if names[name] == "small" or NUM_POINTS <= index < 2 * NUM_POINTS else _REALS
                value = mpmath.mpf(reals[(index + place) % len(reals)]) + mpmath.mpf(digest % 1000) / 79190
                value = value * 10 ** (digest // 1000 % 6) if is_large else value
                point[name] = -value if index >= 5 and (digest + place) % 2 else value
        yield point


def points_of_change(names: dict[str, str], constants: set[Fraction]) -> Iterator[Point]:
    """Points around which floors, remainders, binomials and absolute values with these constants change.

    One symbol at a time is at, just below or just above a constant, twice a constant or a common multiple of all, of
    either sign, or half a constant from a whole number; the others are as at one of `points`. Raises TooLargeError.
    """
    stepped = sorted(name for name, kind in names.items() if kind in STEPPED)
    lcm = math.lcm(*(int(c) for c in constants if c.denominator == 1 and c > 1))
    centres = {Fraction(lcm), *(times * c for c in constants for times in (1, 2))}
    values = sorted({sign * (centre + by) for centre in centres for by in (-1, 0, 1) for sign in (-1, 1)})
    values += [7 + sign * c / 2 for c in sorted(constants) if 0 < c < 1 for sign in (-1, 1)]
    if len(values) * len(stepped) > MOST_POINTS or max(centres) > MOST_CONSTANT:
        raise TooLargeError("steps at too many or too large numbers")
    for index, (value, name) in enumerate(product(values, stepped)):
        if value.denominator == 1 or names[name] != "integer":
            others = next(islice(points(names), index % NUM_POINTS, None))
            yield {**others, name: mpmath.mpf(value.numerator) / value.denominator}

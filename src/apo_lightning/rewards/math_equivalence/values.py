"""High-precision values of sympy expressions, at a point where they have variables."""

import random
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath
from sympy import Derivative, Float, Pow, Rational, Symbol
from sympy.core.function import AppliedUndef

_MAX_BITS = 40_000
"""Larger numbers (beyond about 12000 digits) are not computed with: it would take unbounded time."""


class NotComputableError(Exception):
    """The expression has no value that can be computed here."""


class TooLargeError(NotComputableError):
    """A value, or an intermediate one, is too large or too small to compute with."""


def is_imaginary_unit(*expressions: Any) -> bool:
    """Whether the symbol i means √-1; together with j it is a unit vector or an index."""
    return not {"j", "vec{i}", "hat{i}"} & {symbol.name for one in expressions for symbol in one.free_symbols}


def names_of(*expressions: Any) -> frozenset[str]:
    """The variables of all expressions."""
    names = frozenset(symbol.name for expression in expressions for symbol in expression.free_symbols)
    return names - {"i"} if is_imaginary_unit(*expressions) else names


def point_for(index: int, names: frozenset[str], both_signs: bool = False) -> dict[str, Any]:
    """A number for each variable; the same in every run."""
    numbers = {name: random.Random(f"{index} {name}") for name in names}
    return {
        name: number.uniform(0.5, 2.0) * (number.choice((-1, 1)) if both_signs else 1)
        for name, number in numbers.items()
    }


def values_of(expressions: tuple[Any, ...], point: dict[str, Any], digits: int) -> tuple[list[Any], "Values"]:
    """The values of expressions at a point, computed with the given number of digits.

    Raises:
        NotComputableError: an expression has no value or an unknown function.
    """
    is_real = not any(symbol.name == "i" for expression in expressions for symbol in expression.free_symbols)
    values = Values({"i": mpmath.j} | point, is_real)
    try:
        with mpmath.workdps(digits):
            return [values.of(expression) for expression in expressions], values
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotComputableError from error


def _floor(number: Any) -> Any:
    # A computed integer may be slightly below itself.
    nearest = mpmath.nint(number)
    return nearest if abs(number - nearest) < mpmath.mpf(10) ** (-mpmath.mp.dps // 2) else mpmath.floor(number)


_CONSTANTS = {"Pi": mpmath.pi, "Exp1": mpmath.e, "ImaginaryUnit": mpmath.j}
_FUNCTIONS = {
    name: getattr(mpmath, name)
    for name in (
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "acot", "asec", "acsc"),
        *("sinh", "cosh", "tanh", "coth", "asinh", "acosh", "atanh", "erf"),
        *("factorial", "binomial", "gamma", "re", "im", "arg", "sign"),
    )
} | {
    "Abs": mpmath.fabs,
    "conjugate": mpmath.conj,
    "log": lambda number, base=mpmath.e: mpmath.log(number) / mpmath.log(base),
    "floor": _floor,
    "ceiling": lambda number: -_floor(-number),
    "Mod": lambda number, modulus: number - modulus * _floor(number / modulus),
    "Max": max,
    "Min": min,
    "UnevaluatedExpr": lambda number: number,
}
_GROWING = frozenset({"sinh", "cosh", "factorial", "binomial", "gamma"})
_MAX_ARGUMENT = 4000
"""Largest argument of a growing function: 4000! has 12674 digits."""


@dataclass
class Values:
    """Evaluates expressions with mpmath and records the largest and smallest magnitude of any intermediate value."""

    point: dict[str, Any]
    is_real: bool
    """True where i does not occur: the cube root of -8 is then -2."""
    max_bits: int = field(default=0, init=False)
    min_bits: int = field(default=0, init=False)

    @property
    def reach(self) -> int:
        """Largest distance of a value from 1, in bits."""
        return max(self.max_bits, -self.min_bits)

    def of(self, expression: Any) -> Any:
        """The value of one expression; raises `NotComputableError` where it is not finite."""
        value = self._compute(expression)
        if not mpmath.isfinite(value):
            raise NotComputableError
        if value != 0:
            bits = int(mpmath.mag(value))
            if abs(bits) > _MAX_BITS:
                raise TooLargeError
            self.max_bits, self.min_bits = max(self.max_bits, bits), min(self.min_bits, bits)
        return value

    def _compute(self, expression: Any) -> Any:
        kind = type(expression).__name__
        if expression.is_Rational or isinstance(expression, Float):
            # A decimal is the number as written, not the nearest binary fraction.
            number = Fraction(str(expression)) if isinstance(expression, Float) else expression
            return mpmath.mpf(int(number.numerator)) / int(number.denominator)
        if isinstance(expression, Symbol):
            return mpmath.mpmathify(self.point[expression.name])
        if kind in _CONSTANTS:
            return +_CONSTANTS[kind]
        if isinstance(expression, Derivative):
            # A fixed number per derivative, so that equal derivatives have equal values.
            return mpmath.mpf(random.Random(str(expression)).uniform(0.5, 2.0))
        arguments = [self.of(argument) for argument in expression.args]
        if expression.is_Add:
            return mpmath.fsum(arguments)
        if expression.is_Mul:
            return mpmath.fprod(arguments)
        if isinstance(expression, Pow):
            return self._power(arguments[0], arguments[1], expression.exp)
        if kind == "exp":
            return self._power(mpmath.e, arguments[0])
        if isinstance(expression, AppliedUndef):
            shift = random.Random(expression.func.__name__).uniform(0.5, 2.0)
            return mpmath.cos(sum((rank + shift) * argument for rank, argument in enumerate(arguments)) + shift)
        if kind in _GROWING and any(abs(argument) > _MAX_ARGUMENT for argument in arguments):
            raise TooLargeError
        if kind not in _FUNCTIONS:
            raise NotComputableError
        return _FUNCTIONS[kind](*arguments)

    def _power(self, base: Any, exponent: Any, written: Any = None) -> Any:
        if base != 0 and abs(exponent * mpmath.log(abs(base), 2)) > _MAX_BITS:
            raise TooLargeError
        is_negative = mpmath.im(base) == 0 and mpmath.re(base) < 0
        if self.is_real and is_negative and isinstance(written, Rational) and written.q > 1 and written.q % 2:
            return (-1) ** int(written.p) * mpmath.power(-base, exponent)
        return mpmath.power(base, exponent)

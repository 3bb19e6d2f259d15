"""High-precision values of sympy expressions, at a point where they have variables."""

import itertools
import random
from typing import Any

import mpmath
import sympy
from sympy import Float, Rational
from sympy.core.function import AppliedUndef

_MAX_BITS = 40_000
"""Larger numbers (beyond about 12000 digits) are not computed with: it would take unbounded time."""
_GROWING = (sympy.factorial, sympy.binomial, sympy.gamma, sympy.sinh, sympy.cosh)
_MAX_ARGUMENT = 4000
"""Largest argument of a growing function: 4000! has 12674 digits."""


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


def reach_of(*expressions: Any) -> int:
    """A bound on the distance of the numbers in the expressions from 1, in bits; raises `TooLargeError` above a limit.

    Towers of powers are found here: sympy would compute with them for hours.
    """
    bits = mpmath.mpf(0)
    # A power comes after its base and exponent, which are then known to be moderate and take little time.
    for part in itertools.chain(*map(sympy.postorder_traversal, expressions)):
        if isinstance(part, _GROWING) and any(_rough(argument) > _MAX_ARGUMENT for argument in part.args):
            raise TooLargeError
        if isinstance(part, sympy.Pow | sympy.exp):
            base, exponent = part.as_base_exp()
            bits += _rough(exponent) * _num_bits(base)
        elif part.is_Number:
            bits += _num_bits(part)
        if bits > _MAX_BITS:
            raise TooLargeError
    return int(bits)


def values_of(expressions: tuple[Any, ...], point: dict[str, Any], digits: int) -> list[Any]:
    """The values of moderate expressions (see `reach_of`) at a point; 0 where no digit is significant.

    Raises:
        NotComputableError: an expression has no finite value or an unknown function.
    """
    is_real = not any(symbol.name == "i" for expression in expressions for symbol in expression.free_symbols)
    numbers: dict[str, Any] = {"i": sympy.I} | {name: sympy.sympify(number) for name, number in point.items()}
    values = []
    try:
        for expression in expressions:
            computable = _computable(expression, is_real)
            subs = {symbol: numbers[symbol.name] for symbol in computable.free_symbols}
            parts = computable.evalf(digits, subs=subs).as_real_imag()
            with mpmath.workdps(digits):
                values.append(mpmath.mpc(*map(_as_mpf, parts)))
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise NotComputableError from error
    return values


def _rough(expression: Any) -> Any:
    """The size of a number to few digits; 2, the largest size of a variable, where it is not a number."""
    value = None if expression.free_symbols else abs(expression.evalf(5)).evalf(5)
    return mpmath.mpmathify(value) if isinstance(value, Float) and value.is_finite else mpmath.mpf(2)


def _num_bits(number: Any) -> Any:
    size = _rough(number)
    return abs(mpmath.log(size, 2)) if size else 0


def _computable(expression: Any, is_real: bool) -> Any:
    """The expression in terms that sympy evaluates; derivatives and unknown functions become some number."""
    derivatives = expression.atoms(sympy.Derivative)
    expression = expression.xreplace({one: Rational(random.Random(str(one)).uniform(0.5, 2.0)) for one in derivatives})
    return expression.replace(
        lambda part: isinstance(part, Float | AppliedUndef | sympy.Pow), lambda part: _converted(part, is_real)
    )


def _converted(part: Any, is_real: bool) -> Any:
    if isinstance(part, Float):
        return Rational(str(part))  # a decimal is the number as written, not the nearest binary fraction
    if isinstance(part, AppliedUndef):
        shift = Rational(random.Random(part.func.__name__).uniform(0.5, 2.0))
        return sympy.cos(sum((rank + shift) * argument for rank, argument in enumerate(part.args)) + shift)
    if is_real and isinstance(part.exp, Rational) and part.exp.q > 1 and part.exp.q % 2:
        return sympy.sign(part.base) ** part.exp.p * sympy.Abs(part.base) ** part.exp  # the cube root of -8 is -2
    return part


def _as_mpf(part: Any) -> Any:
    if part == 0 or str(part).lstrip("-").startswith("0.e"):  # so sympy writes a number without a significant digit
        return mpmath.mpf(0)
    if not isinstance(part, Float) or not part.is_finite:
        raise NotComputableError
    return mpmath.mpmathify(part)

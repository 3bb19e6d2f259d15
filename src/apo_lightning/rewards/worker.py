"""A child process that compares answers with math-verify. Started by path, by `worker_pool`; never imported there.

It imports nothing of this package, because torch would cost each worker seconds and hundreds of megabytes.

Protocol, one line each way: in `[gold, answer]` as JSON, out a verdict's status; once, at the start, out `ready`.
"""

import json
import logging
import os
import random
import re
import resource
import signal
import sys
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy import Derivative, Equality, Expr, Float, I, Pow, Rational, Symbol, nan, zoo
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

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
_MAX_BITS = 40_000
"""Numbers that are larger, of about 12000 digits, are not computed with: it would take time without bound."""


@dataclass(frozen=True)
class _Reading:
    """An answer as it was read."""

    text: str
    value: Any | None
    """The sympy expression; None for what cannot be read."""
    rounding: float
    """The relative error that its longest decimal allows; 0 where none is long enough to be a rounding."""


class _NotComputableError(Exception):
    """An expression without a value that can be computed here."""


class _TooLargeError(_NotComputableError):
    """A value, or one on the way to it, is too large or too small to be computed with."""


def judge(gold: str, answer: str) -> str:
    """`correct`, `incorrect`, `unparsed`, or `error` for a gold answer that cannot be read; may well take forever.

    Constants are compared as numbers, to 40 digits more than their parts span, and never simplified; expressions in
    variables and equations are compared at points first. What is left goes to math-verify.

    Departure: math-verify compares decimals to 6 places after the point, so that 4·10⁻²⁴ would equal 7·10⁻²². Here
    decimals are exact, and only one of six significant digits may be a rounding. To math-verify an equation equals its
    right side, R is r, and I is √-1; not so here.
    """
    expected, stated = _read_gold(gold), _read(answer)
    if not expected.text:
        return "error"
    if expected.text == stated.text:
        return "correct"
    values = expected.value, stated.value
    if stated.value is None or any(isinstance(value, Expr) and value.has(zoo, nan) for value in values):
        return "unparsed"
    if any(isinstance(value, Expr) for value in values) and any(
        isinstance(value, Relational | And) for value in values
    ):
        return "incorrect"
    try:
        agree = _agree(expected, stated)
        if agree is None:
            is_equal = verify(
                *map(_with_imaginary_unit, values),
                allow_set_relation_comp=True,
                timeout_seconds=0,
                raise_on_error=True,
            )
            agree = expected.value is not None and is_equal
    except MemoryError:
        raise
    except _TooLargeError:
        return "correct" if expected.value == stated.value else "unparsed"
    except Exception:
        # Sympy refuses some values. A policy must not be able to write itself an `error`, which stops the run, so this
        # counts as an answer that could not be read.
        return "unparsed"
    return "correct" if agree else "incorrect"


def _read(answer: str) -> _Reading:
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
    return _Reading("".join(text.split()), value, _rounding(text))


_read_gold = lru_cache(maxsize=256)(_read)  # the completions of a group share their gold


def _rounding(text: str) -> float:
    """Half a unit in the last place of a decimal, relative to it."""
    digits = ("".join(decimal).lstrip("0") for decimal in _DECIMAL.findall(text))
    return max(
        (0.5 / float(f"{d[0]}.{d[1:17]}") * 10.0 ** (1 - len(d)) for d in digits if len(d) >= _MIN_SIGNIFICANT_DIGITS),
        default=0.0,
    )


def _with_imaginary_unit(value: Any) -> Any:
    symbol = Symbol("i", real=True)
    return value.subs(symbol, I) if isinstance(value, Expr) and _is_imaginary_unit(value) else value


def _is_imaginary_unit(*expressions: Any) -> bool:
    """Whether i, where it occurs, is √-1; beside a j it is a unit vector or an index."""
    return not {"j", "vec{i}", "hat{i}"} & {symbol.name for one in expressions for symbol in one.free_symbols}


def _agree(expected: _Reading, stated: _Reading) -> bool | None:
    """Whether two constants, two expressions in variables or two equations are equal; None where that is open."""
    gold, answer = expected.value, stated.value
    if isinstance(gold, Equality) and isinstance(answer, Equality):
        return _agree_at_a_solution(gold, answer)
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)):
        return None
    tolerance = max(expected.rounding, stated.rounding)
    try:
        if _names(gold, answer):
            return _agree_at_points(gold, answer, tolerance)
        return _agree_as_constants(gold, answer, tolerance)
    except _TooLargeError:
        raise
    except _NotComputableError:
        return None


def _agree_as_constants(gold: Any, answer: Any, tolerance: float) -> bool:
    """Whether two numbers are equal, real or complex."""
    _, rough = _values_of((gold, answer), {}, digits=30)
    # What vanishes here is smaller than any of the parts by 40 digits; no rounding of the parts reaches as far.
    (one, other), fine = _values_of((gold, answer), {}, digits=60 + int(0.31 * 3 * rough.reach))
    if fine.max_bits > rough.max_bits + 8:
        raise _NotComputableError  # it grows with the digits: a division by what is zero
    gap = abs(one - other)
    return bool(gap <= mpmath.ldexp(1, -rough.reach - 130) or gap <= tolerance * max(abs(one), abs(other)))


def _agree_at_points(gold: Any, answer: Any, tolerance: float) -> bool | None:
    """Whether two expressions in variables agree where they are evaluated; None where that is open.

    Simplifying may take for ever; numbers take milliseconds. What differs at positive numbers is different. What agrees
    to 18 digits at numbers of either sign too is equal; what agrees at positive ones alone, such as √(ab) and √a√b, is
    left to math-verify.
    """
    is_equal = True
    for index in range(4):
        point = _point(index, _names(gold, answer), both_signs=index >= 2)
        (one, other), values = _values_of((gold, answer), point, digits=60)
        gap, size = abs(one - other), max(abs(one), abs(other))
        is_near = gap <= max(tolerance, 1e-18) * size or gap <= mpmath.ldexp(1, values.max_bits - 170)
        if index < 2 and not is_near:
            return False
        is_equal = is_equal and is_near
    return True if is_equal else None


def _agree_at_a_solution(gold: Any, answer: Any) -> bool | None:
    """False where numbers that make the sides of one equation equal do not make the other's; else None."""
    names = _names(gold, answer)

    def differences(equation: Any, name: str, *numbers: Any) -> list[complex]:
        found = []
        for number in numbers:
            point = _point(0, names) | {name: number}
            try:
                (left, right), _ = _values_of((equation.lhs, equation.rhs), point, digits=30)
            except _NotComputableError:
                continue
            found.append(complex(left - right))
        return found

    for name in sorted(names):
        at = differences(gold, name, 0.0, 1.0, 2.0)
        # Only where this variable enters linearly is the solution at hand.
        if (
            len(at) == 3
            and abs(at[1] - at[0]) > 1e-9 * abs(at[0])
            and abs(at[2] - 2 * at[1] + at[0]) < 1e-9 * abs(at[1])
        ):
            solution = at[0] / (at[0] - at[1])
            zero = differences(answer, name, solution, 2 * solution or 1.0)
            return False if len(zero) == 2 and abs(zero[0]) > 1e-4 * abs(zero[1]) else None
    return None


def _names(*expressions: Any) -> frozenset[str]:
    names = frozenset(symbol.name for expression in expressions for symbol in expression.free_symbols)
    return names - {"i"} if _is_imaginary_unit(*expressions) else names


def _point(index: int, names: frozenset[str], both_signs: bool = False) -> dict[str, Any]:
    """A number for each variable, the same in every run."""
    numbers = {name: random.Random(f"{index} {name}") for name in names}
    return {
        name: number.uniform(0.5, 2.0) * (number.choice((-1, 1)) if both_signs else 1)
        for name, number in numbers.items()
    }


def _values_of(expressions: tuple[Any, ...], point: dict[str, Any], digits: int) -> tuple[list[Any], "_Values"]:
    """Their values at a point, computed with so many digits.

    Raises:
        _NotComputableError: one has none, or a function of it is not known here.
    """
    is_real = not any(symbol.name == "i" for expression in expressions for symbol in expression.free_symbols)
    values = _Values({"i": mpmath.j} | point, is_real)
    try:
        with mpmath.workdps(digits):
            return [values.of(expression) for expression in expressions], values
    except (ArithmeticError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _NotComputableError from error


def _floor(number: Any) -> Any:
    # A whole number that was computed may lie a rounding below itself.
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
class _Values:
    """Computes values with mpmath's precision, and keeps how large and how small what it met was."""

    point: dict[str, Any]
    is_real: bool
    """True where no i occurs: the third root of -8 is then -2."""
    max_bits: int = field(default=0, init=False)
    min_bits: int = field(default=0, init=False)

    @property
    def reach(self) -> int:
        """Bits between 1 and the farthest of all values."""
        return max(self.max_bits, -self.min_bits)

    def of(self, expression: Any) -> Any:
        value = self._compute(expression)
        if not mpmath.isfinite(value):
            raise _NotComputableError
        if value != 0:
            bits = int(mpmath.mag(value))
            if abs(bits) > _MAX_BITS:
                raise _TooLargeError
            self.max_bits, self.min_bits = max(self.max_bits, bits), min(self.min_bits, bits)
        return value

    def _compute(self, expression: Any) -> Any:
        kind = type(expression).__name__
        if expression.is_Rational or isinstance(expression, Float):
            # A decimal is what was written, not the nearest binary fraction.
            number = Fraction(str(expression)) if isinstance(expression, Float) else expression
            return mpmath.mpf(int(number.numerator)) / int(number.denominator)
        if isinstance(expression, Symbol):
            return mpmath.mpmathify(self.point[expression.name])
        if kind in _CONSTANTS:
            return +_CONSTANTS[kind]
        if isinstance(expression, Derivative):
            # Some fixed number: the same derivative is the same on both sides.
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
            raise _TooLargeError
        if kind not in _FUNCTIONS:
            raise _NotComputableError
        return _FUNCTIONS[kind](*arguments)

    def _power(self, base: Any, exponent: Any, written: Any = None) -> Any:
        if base != 0 and abs(exponent * mpmath.log(abs(base), 2)) > _MAX_BITS:
            raise _TooLargeError
        is_negative = mpmath.im(base) == 0 and mpmath.re(base) < 0
        if self.is_real and is_negative and isinstance(written, Rational) and written.q > 1 and written.q % 2:
            return (-1) ** int(written.p) * mpmath.power(-base, exponent)
        return mpmath.power(base, exponent)


def main(timeout_s: float, memory_limit_bytes: int) -> None:
    """Answer requests until the pipe closes.

    Args:
        timeout_s: a request that takes longer ends this process [s]. The parent kills earlier; this is for the
            worker of a parent that is gone, which would burn a core until the machine is restarted.
        memory_limit_bytes: address space.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the parent ends its workers
    logging.disable()  # math-verify warns that its own time-outs are off, once per worker
    judge("1", r"\frac{2}{2}")  # loads the grammar, so that the first answer's deadline does not pay for it
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        memory_limit_bytes = min(memory_limit_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever sympy prints must not reach the pipe of the verdicts.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.write(replies, b"ready\n")
    for request in requests:
        gold, answer = json.loads(request.decode("utf-8", "surrogatepass"))
        # Without a handler the alarm ends the process, from C code too.
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            status = judge(gold, answer)
        except MemoryError:
            raise  # what is left of this process is not to be trusted with the next answer
        except Exception:
            status = "error"
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, f"{status}\n".encode())


if __name__ == "__main__":
    main(timeout_s=float(sys.argv[1]), memory_limit_bytes=int(sys.argv[2]))

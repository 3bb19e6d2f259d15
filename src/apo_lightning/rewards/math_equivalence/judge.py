"""The verdict on one pair of gold and answer."""

from typing import Any

import mpmath
from latex2sympy2_extended.logic import And
from math_verify import verify
from sympy import Equality, Expr, I, Symbol, nan, zoo
from sympy.core.relational import Relational

from apo_lightning.rewards.math_equivalence.reading import Reading, read, read_gold
from apo_lightning.rewards.math_equivalence.values import (
    NotComputableError,
    TooLargeError,
    is_imaginary_unit,
    names_of,
    point_for,
    reach_of,
    values_of,
)


def judge(gold: str, answer: str) -> str:
    """`correct`, `incorrect`, `unparsed`, or `error` for a gold answer that cannot be parsed; may run forever.

    Constants are compared as numbers, to 40 digits beyond the range of their parts, and never simplified. Expressions
    in variables and equations are first compared at points. The rest goes to math-verify.

    Departure: math-verify compares decimals to 6 places after the point, so that 4·10⁻²⁴ would equal 7·10⁻²². Here
    decimals are exact, and only one with six significant digits may be a rounding. For math-verify an equation equals
    its right side, R is r, and I is √-1; not here.
    """
    expected, stated = read_gold(gold), read(answer)
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
                *map(_with_imaginary_unit, values), allow_set_relation_comp=True, timeout_seconds=0, raise_on_error=True
            )
            agree = expected.value is not None and is_equal
    except MemoryError:
        raise
    except TooLargeError:
        return "correct" if expected.value == stated.value else "unparsed"
    except Exception:
        # Sympy rejects some values. A policy must not be able to cause an `error`, which stops the run, so this counts
        # as an answer that cannot be parsed.
        return "unparsed"
    return "correct" if agree else "incorrect"


def _with_imaginary_unit(value: Any) -> Any:
    symbol = Symbol("i", real=True)
    return value.subs(symbol, I) if isinstance(value, Expr) and is_imaginary_unit(value) else value


def _agree(expected: Reading, stated: Reading) -> bool | None:
    """Whether two constants, two expressions in variables or two equations are equal; None where undecided."""
    gold, answer = expected.value, stated.value
    if not all(isinstance(value, Expr | Equality) for value in (gold, answer)):
        return None
    reach = reach_of(gold, answer)
    if isinstance(gold, Equality):
        return _agree_at_a_solution(gold, answer)
    tolerance = max(expected.rounding, stated.rounding)
    try:
        if names_of(gold, answer):
            return _agree_at_points(gold, answer, tolerance)
        # Equal constants agree to 40 digits beyond the range of their parts.
        digits = 40 + int(0.31 * reach)
        values = values_of((gold, answer), {}, digits=2 * digits)
        return _is_near(values, max(tolerance, mpmath.mpf(10) ** -digits), 2 * digits)
    except NotComputableError:
        return None


def _is_near(values: list[Any], tolerance: Any, digits: int) -> bool:
    with mpmath.workdps(digits):
        one, other = values
        return bool(abs(one - other) <= tolerance * max(abs(one), abs(other)))


def _agree_at_points(gold: Any, answer: Any, tolerance: float) -> bool | None:
    """Whether two expressions in variables agree at fixed points; None where undecided.

    Simplifying may never end; evaluating takes milliseconds. Expressions that differ at positive numbers are different.
    Those that agree to 18 digits at numbers of both signs are equal. Those that agree at positive ones alone, such as
    √(ab) and √a√b, are left to math-verify.
    """
    is_equal = True
    for index in range(4):
        point = point_for(index, names_of(gold, answer), both_signs=index >= 2)
        is_near = _is_near(values_of((gold, answer), point, digits=30), max(tolerance, 1e-18), 30)
        if index < 2 and not is_near:
            return False
        is_equal = is_equal and is_near
    return True if is_equal else None


def _agree_at_a_solution(gold: Any, answer: Any) -> bool | None:
    """False where a solution of one equation does not solve the other; else None."""
    names = names_of(gold, answer)

    def differences(equation: Any, name: str, *numbers: Any) -> list[complex]:
        found = []
        for number in numbers:
            point = point_for(0, names) | {name: number}
            try:
                left, right = values_of((equation.lhs, equation.rhs), point, digits=30)
            except NotComputableError:
                continue
            found.append(complex(left - right))
        return found

    for name in sorted(names):
        at = differences(gold, name, 0.0, 1.0, 2.0)
        # The solution is known only where this variable is linear.
        if (
            len(at) == 3
            and abs(at[1] - at[0]) > 1e-9 * abs(at[0])
            and abs(at[2] - 2 * at[1] + at[0]) < 1e-9 * abs(at[1])
        ):
            solution = at[0] / (at[0] - at[1])
            zero = differences(answer, name, solution, 2 * solution or 1.0)
            return False if len(zero) == 2 and abs(zero[0]) > 1e-4 * abs(zero[1]) else None
    return None

"""A child process that compares answers with math-verify. Started by path, by `worker_pool`; never imported there.

It imports nothing of this package, because torch would cost each worker seconds and hundreds of megabytes.

Protocol, one line each way: in `[gold, answer]` as JSON, out a verdict's status; once, at the start, out `ready`.
"""

import cmath
import json
import logging
import os
import random
import re
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from sympy import Abs, Derivative, Equality, Expr, Float, cos, nan, zoo
from sympy.core.function import AppliedUndef

# No extraction of plain expressions: of LaTeX that it cannot read it would take the last number for the whole answer.
# No removal of units: it takes every last letter for one, so that 37/4 m, with a mass m, would equal 37/4.
_NORMALIZATION = NormalizationConfig(units=False, malformed_operators=True, nits=True)
_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0, normalization_config=_NORMALIZATION),)
_MISREAD = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\gamma(?![A-Za-z])", r"\\upsilon "),  # read as Euler's constant
        (r"(?<![A-Za-z\\])E(?=\s*_)", r"\\Xi "),  # as Euler's number, which has no index
        (r"\\odot(?![A-Za-z])", "sun"),
        (r"''", r"^{\\prime \\prime}"),  # a derivative's dashes are dropped
        (r"'", r"^{\\prime}"),
    )
)
_RELATIVE_TOLERANCE = 5e-6
"""Six significant digits."""


def judge(gold: str, answer: str) -> str:
    """`correct`, `incorrect`, `unparsed`, or `error` for a gold answer that cannot be read; may well take forever.

    Departure: math-verify compares decimals to 6 places after the point, so that 4·10⁻²⁴ would equal 7·10⁻²²; two
    numbers that agree only thus must also agree to six significant digits. Not so inside a tuple or a set, which
    `comparison` takes apart before anything gets here.
    """
    golds = _parse_gold(gold)
    if not golds:
        return "error"
    answers = _parse(answer)
    if any(isinstance(reading, Expr) and reading.has(zoo, nan) for reading in (*golds, *answers)):
        return "correct" if golds[-1] == answers[-1] else "unparsed"
    agree = _agree_at_points(golds[0], answers[0]) if answers else None
    if agree is not None:
        return "correct" if agree else "incorrect"
    try:
        is_equal = verify(golds, answers, timeout_seconds=0, raise_on_error=True)
    except MemoryError:
        raise
    except Exception:
        # Sympy refuses some values, 1/0 for one. A policy must not be able to write itself an `error`, which stops
        # the run, so this counts as an answer that could not be read, unless the text alone decides.
        return "correct" if verify(golds, answers, timeout_seconds=0) else "unparsed"
    if is_equal:
        return "incorrect" if _agrees_by_rounding_only(golds[0], answers[0]) else "correct"
    was_read = any(not isinstance(reading, str) for reading in answers)
    return "incorrect" if was_read else "unparsed"


def _parse(answer: str) -> list[Any]:
    # Bare LaTeX is not found by math-verify (it is looked for in an environment), so both sides go into a box.
    # A timeout of 0 is none: theirs needs a signal handler that long C calls never return to, the parent's kill works.
    for pattern, replacement in _MISREAD:
        answer = pattern.sub(replacement, answer)
    return parse(f"\\boxed{{{answer}}}", _EXTRACTION, parsing_timeout=0)


_parse_gold = lru_cache(maxsize=256)(_parse)  # the completions of a group share their gold


def _agree_at_points(gold: Any, answer: Any) -> bool | None:
    """Whether two expressions, or two equations, in variables agree where they are evaluated; None where that is open.

    Simplifying may take for ever; numbers take milliseconds. What differs at positive numbers is different. What agrees
    to 12 digits at numbers of either sign too is equal; what agrees at positive ones alone, such as √(ab) and √a√b, is
    left to math-verify.
    """
    if isinstance(gold, Equality) and isinstance(answer, Equality):
        return _agree_at_a_solution(_difference(gold), _difference(answer))
    if not (isinstance(gold, Expr) and isinstance(answer, Expr)) or not _names(gold, answer):
        return None
    is_equal = True
    for index in range(4):
        point = _point(index, _names(gold, answer), both_signs=index >= 2)
        values = _value(gold, point), _value(answer, point)
        if values[0] is None or values[1] is None:
            return None
        gap = abs(values[0] - values[1]) / max(abs(values[0]), abs(values[1]), 1e-300)
        if index < 2 and gap > 2 * _RELATIVE_TOLERANCE:
            return False
        is_equal = is_equal and gap < 1e-12
    return True if is_equal else None


def _difference(equation: Any) -> Any:
    return equation.lhs - equation.rhs


def _agree_at_a_solution(gold: Any, answer: Any) -> bool | None:
    """False where numbers that make one side zero do not make the other; else None."""
    names = _names(gold, answer)

    def values(expression: Any, name: str, *numbers: float | complex) -> list[complex]:
        found = (_value(expression, _point(0, names) | {name: number}) for number in numbers)
        return [value for value in found if value is not None]

    for name in sorted(names):
        at = values(gold, name, 0.0, 1.0, 2.0)
        # Only where this variable enters linearly is the solution at hand.
        if (
            len(at) == 3
            and abs(at[1] - at[0]) > 1e-9 * abs(at[0])
            and abs(at[2] - 2 * at[1] + at[0]) < 1e-9 * abs(at[1])
        ):
            solution = at[0] / (at[0] - at[1])
            zero = values(answer, name, solution, 2 * solution or 1.0)
            return False if len(zero) == 2 and abs(zero[0]) > 1e-4 * abs(zero[1]) else None
    return None


def _names(*expressions: Any) -> frozenset[str]:
    return frozenset(symbol.name for expression in expressions for symbol in expression.free_symbols) - {"i"}


def _point(index: int, names: frozenset[str], both_signs: bool = False) -> dict[str, float | complex]:
    """A number for each variable, the same in every run; `i` is the imaginary unit."""
    numbers = {name: random.Random(f"{index} {name}") for name in names}
    return {"i": 1j} | {
        name: number.uniform(0.5, 2.0) * (number.choice((-1, 1)) if both_signs else 1)
        for name, number in numbers.items()
    }


def _value(expression: Any, point: dict[str, float | complex]) -> complex | None:
    """The finite value at a point, functions and derivatives being some fixed ones; None where there is none."""

    def function(part: Any) -> Any:
        shift = random.Random(part.func.__name__).uniform(0.5, 2.0)
        return cos(sum((rank + shift) * argument for rank, argument in enumerate(part.args)) + shift)

    def derivative(part: Any) -> Any:
        return Float(random.Random(str(part)).uniform(0.5, 2.0))

    numbers = {symbol: point[symbol.name] for symbol in expression.free_symbols}
    try:
        expression = expression.replace(lambda part: isinstance(part, Derivative), derivative)
        expression = expression.replace(lambda part: isinstance(part, AppliedUndef), function)
        value = complex(expression.evalf(subs=numbers))
    except MemoryError:
        raise
    except Exception:
        return None
    return value if cmath.isfinite(value) else None


def _agrees_by_rounding_only(gold: Any, answer: Any) -> bool:
    if not (isinstance(gold, Expr) and isinstance(answer, Expr) and gold.is_number and answer.is_number):
        return False
    difference = Abs(gold - answer).evalf()
    # No Float: an exact 0, or the nan of two infinities, which cannot be ordered.
    return isinstance(difference, Float) and bool(_RELATIVE_TOLERANCE * Abs(gold) < difference <= 1e-6)


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

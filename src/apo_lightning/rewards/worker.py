"""A child process that compares answers with math-verify. Started by path, by `worker_pool`; never imported there.

It imports nothing of this package, because torch would cost each worker seconds and hundreds of megabytes.

Protocol, one line each way: in `[gold, answer]` as JSON, out a verdict's status; once, at the start, out `ready`.
"""

import json
import logging
import os
import resource
import signal
import sys
from functools import lru_cache
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify
from sympy import Abs, Expr, Float

_EXTRACTION = (LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig())
_RELATIVE_TOLERANCE = 1e-4


def judge(gold: str, answer: str) -> str:
    """`correct`, `incorrect`, `unparsed`, or `error` for a gold answer that cannot be read; may well take forever.

    Departure: math-verify compares decimals to 6 places after the point, so that 4·10⁻²⁴ would equal 7·10⁻²²; two
    numbers that agree only thus must also agree to a relative 10⁻⁴. Not so inside a tuple or a set.
    """
    golds = _parse_gold(gold)
    if not golds:
        return "error"
    answers = _parse(answer)
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
    return parse(f"\\boxed{{{answer}}}", _EXTRACTION, parsing_timeout=0)


_parse_gold = lru_cache(maxsize=256)(_parse)  # the completions of a group share their gold


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

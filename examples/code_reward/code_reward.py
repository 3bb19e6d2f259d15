"""The share of calls that a completion's function gets right, as a reward function in TRL's signature."""

import json
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sandbox import missing_limits, run_function

FENCE = re.compile(r"```(?:python|py)?\s*\n(.*?)```", re.DOTALL)
NUM_WORKERS = 4


def passed_calls(
    completions: Sequence[str],
    function: Sequence[str],
    calls: Sequence[str],
    expected: Sequence[str],
    log_extra: Callable[[str, Sequence[Any]], None],
    **columns: object,
) -> list[float]:
    """Rewards in [0, 1]; 1 where every call returns what is expected, so it counts as correct.

    Columns of the data set: `function` its name, `calls` and `expected` JSON lists of arguments and of results.
    """
    with ThreadPoolExecutor(NUM_WORKERS) as threads:  # each waits for a process
        results = list(threads.map(run, completions, function, calls))
    rewards = []
    for result, wanted in zip(results, map(json.loads, expected), strict=True):
        pairs = zip(result or [], wanted, strict=result is not None)
        passed = sum(is_value and type(value) is type(right) and value == right for (is_value, value), right in pairs)
        rewards.append(passed / len(wanted))
    log_extra("ran", [result is not None for result in results])
    log_extra("not_held", ["; ".join(missing_limits())] * len(results))
    return rewards


def run(completion: str, function: str, calls: str) -> list[tuple[bool, Any]] | None:
    """The last fenced block of a completion, or the whole of it, in the sandbox."""
    code = (FENCE.findall(completion) or [completion])[-1]
    return run_function(code, function, json.loads(calls))

"""A reward with a signal for random models: TRL's signature, right about half of the time."""

import math
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from apo_lightning.rewards import MathVerifyReward
from apo_lightning.types import Verdict


def text_of(completion: str | list[dict[str, str]]) -> str:
    return completion if isinstance(completion, str) else completion[0]["content"]


def even_start(completions: Sequence[Any], **columns: object) -> list[float]:
    return [float(ord(text[0]) % 2 == 0) if text else 0.0 for text in map(text_of, completions)]


def even_start_until_killed(completions: Sequence[Any], **columns: object) -> list[float]:
    """Where KILLED_AFTER is "FILE LINES", ends this process when the file has so many lines, and never later.

    A batch is judged while the one before it is being written; none is written before it has been judged.
    """
    file, _, num_lines = os.environ.get("KILLED_AFTER", "").partition(" ")
    if file and len(completions) != 3:  # of the trial before the run
        if not _LINES_TO_COME:
            _LINES_TO_COME.append(_num_lines(Path(file)))  # of an earlier process: the first batch waits for no other
        if _LINES_TO_COME[-1] >= int(num_lines):
            while _num_lines(Path(file)) < int(num_lines):
                time.sleep(0.001)
            os.kill(os.getpid(), signal.SIGKILL)
        _LINES_TO_COME.append(_LINES_TO_COME[-1] + len(completions))
    return even_start(completions)


_LINES_TO_COME: list[int] = []
"""Lines of the file when all batches judged so far are written, before each call of `even_start_until_killed`."""


def _num_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def by_lot(completions: Sequence[Any], **columns: object) -> list[float]:
    return [float(random.random() < 0.5) for _ in completions]


def never(completions: Sequence[Any], **columns: object) -> list[float]:
    return [0.0] * len(completions)


def failing_once_on_the_second_rank(completions: Sequence[Any], **columns: object) -> list[float]:
    rewards = even_start(completions)
    is_trial = len(rewards) == 3
    return [math.nan, *rewards[1:]] if os.environ.get("LOCAL_RANK") == "1" and not is_trial else rewards


def broken(completions: Sequence[Any], **_: object) -> list[float]:
    raise OSError("no judge answers")


def logged_even_start(
    completions: Sequence[Any], completion_ids: list[list[int]], log_metric: Callable[[str, float], None], **_: object
) -> list[float | None]:
    """As `even_start`, but None where the last token's id is divisible by 5; logs lengths in tokens."""
    for ids in completion_ids:
        log_metric("tokens", len(ids))
    judged = zip(even_start(completions), completion_ids, strict=True)
    return [reward if ids[-1] % 5 else None for reward, ids in judged]


async def progress(completions: Sequence[Any], trainer_state: Any, log_extra: Callable[..., None], **_: object):
    """The share of the run that is done."""
    log_extra("epoch", [trainer_state.epoch] * len(completions))
    return [trainer_state.global_step / trainer_state.max_steps] * len(completions)


def of_calls(completions: Sequence[Any], calls: Any, expected: Any, function: Any) -> list[float]:
    raise AssertionError("no data set here has these columns")


HOSTILE = (
    *("__import__('os').system('touch {n}')", r"\operatorname{{exec}}(open({n}))", "9**9**9**{n}x", "(({n}!)!)!"),
    *(r"{n}^{{9^{{9^9}}}}", r"\gcd(2^{{3000000000{n}}}, 3)", r"\binom{{3000000{n}}}{{1500000{n}}}", "(1,{n}x,\x00)"),
    *(r"\text{{eval('{n}')}}", r"\frac{{{n}x}}{{0}}", r"\int_0^1 e^{{e^{{x^{n}}}}} dx", r"\{{{n}x, \{{{n}\}}\}}"),
    *(r"\sqrt{{\sqrt{{{n}x}}}}", r"\lim_{{x\to {n}}} \sin(1/x)", "f(g({n}))", r"\sum_{{k=1}}^{{10^9}} \sqrt{{k+{n}}}"),
)
"""Answers that are programs, that need all time or all memory, or that mean nothing; {n} makes them distinct."""


class HostileAnswers(MathVerifyReward):
    """Judges hostile answers in place of the completions."""

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        texts = (HOSTILE[n % len(HOSTILE)].format(n=n) for n in range(len(completions)))
        return super().score([rf"\boxed{{{text}}}" for text in texts], [r"\frac{x}{7}"] * len(completions))

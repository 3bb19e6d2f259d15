"""A reward with a signal for random models: TRL's signature, right about half of the time."""

import math
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from apo_lightning.rewards import CallableReward
from apo_lightning.types import Verdict


def even_start(completions: list[str], **columns: object) -> list[float]:
    return [float(ord(text[0]) % 2 == 0) if text else 0.0 for text in completions]


def even_start_until_killed(completions: list[str], **columns: object) -> list[float]:
    """Where KILLED_AFTER is "FILE LINES", ends this process as soon as the file has so many lines."""
    file, _, num_lines = os.environ.get("KILLED_AFTER", "").partition(" ")
    if file and Path(file).exists() and Path(file).read_bytes().count(b"\n") >= int(num_lines):
        os.kill(os.getpid(), signal.SIGKILL)
    return even_start(completions)


def never(completions: list[str], **columns: object) -> list[float]:
    return [0.0] * len(completions)


def failing_once_on_the_second_rank(completions: list[str], **columns: object) -> list[float]:
    rewards = even_start(completions)
    return [math.nan, *rewards[1:]] if os.environ.get("LOCAL_RANK") == "1" else rewards


class StatingReward(CallableReward):
    """Verdicts with an answer: the first character."""

    def score(self, completions: Sequence[str], answers: Sequence[str]) -> list[Verdict]:
        verdicts = super().score(completions, answers)
        return [replace(v, extracted=text[:1] or None) for v, text in zip(verdicts, completions, strict=True)]

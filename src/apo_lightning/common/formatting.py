"""Formatting of numbers and configurations for people."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

GIB = 2**30
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that a terminal obeys, but for the end of a line and a tab."""


def printable(text: str) -> str:
    r"""Text in which escapes stand for characters that a terminal would obey: it may be from anyone's file.

    Example:
        >>> printable("step_\x1b[2J")
        'step_\\x1b[2J'
    """
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def as_cell(text: str) -> str:
    """A cell of a CSV table: text that a spreadsheet would compute begins with `'`, and numbers stay numbers.

    Example:
        >>> [as_cell(text) for text in ("=1+1", "-0.5", "@x", "-")]
        ["'=1+1", '-0.5', "'@x", '-']
    """
    try:
        float(text)
    except ValueError:
        return f"'{text}" if re.match(r"[=+@\t\r-].", text) else text
    return text


def number(value: float, decimals: int = 3) -> str:
    """A number with fixed decimals; "-" if it is not finite.

    Example:
        >>> number(0.41251), number(-1e-9), number(float("nan"))
        ('0.413', '0.000', '-')
    """
    return f"{value:z.{decimals}f}" if math.isfinite(value) else "-"


def duration(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss; "-" if not finite.

    Example:
        >>> duration(75.4), duration(3725.0), duration(float("nan"))
        ('1:15', '1:02:05', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def mean_of_finite(values: Sequence[float]) -> float:
    """The mean of the finite values; NaN if there are none.

    Example:
        >>> mean_of_finite([1.0, float("nan"), 3.0])
        2.0
    """
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def flatten(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """A nested config as dotted key → value, formatted as in YAML.

    Example:
        >>> flatten({"seed": 1, "algo": {"loss": {"dual_clip": None, "clip_eps": 0.2}}, "optimizer": {"lr": 1.0e-6}})
        {'seed': '1', 'algo.loss.dual_clip': 'null', 'algo.loss.clip_eps': '0.2', 'optimizer.lr': '1e-06'}
    """
    flat: dict[str, str] = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return flat

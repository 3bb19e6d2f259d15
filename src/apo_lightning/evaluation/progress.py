"""Progress of an evaluation: a line every ten seconds, and one at the end."""

import math
import time
from collections.abc import Sequence

from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Prints work done, in `unit`, tokens/s and time left, on a line that begins with `what`."""

    def __init__(self, what: str, unit: str, *, is_shown: bool = True) -> None:
        self._what, self._unit, self._is_shown = what, unit, is_shown
        self._started = self._last = time.monotonic()
        self._first = 0
        self._line = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        """Print the last state, unless it is on the terminal already."""
        if self._line and self._is_shown:
            say(self._line)

    def start(self, done: int, total: int) -> None:
        """Start the clock, with `done` of `total` finished earlier."""
        self._first, self._started = done, time.monotonic()
        self.advance(done, total, num_tokens=0)

    def advance(self, done: int, total: int, num_tokens: int, notes: Sequence[str] = ()) -> None:
        """Update the state: `done` of `total`, which took `num_tokens` tokens since the start."""
        now = time.monotonic()
        elapsed, new = now - self._started, done - self._first
        parts = [f"{self._what}{done:,}/{total:,} {self._unit}", *notes]
        if new:
            parts.append(f"{num_tokens / max(elapsed, 1e-9):.0f} tokens/s")
        left = elapsed / new * (total - done) if new else math.nan
        parts.append(f"{duration(elapsed)} elapsed" if done == total else f"{duration(left)} left")
        self._line = "  ".join(parts)
        if self._is_shown and now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            say(self._line)
            self._line = ""

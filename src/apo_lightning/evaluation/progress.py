"""Progress of an evaluation: a line every ten seconds, and one at the end."""

import time
from collections.abc import Sequence

from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration

SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Prints work done, in `unit`, tokens/s and time left, on a line that begins with `what`.

    The clock starts at once, with `done` finished earlier.
    """

    def __init__(self, what: str, unit: str, done: int = 0) -> None:
        self._what, self._unit, self._first = what, unit, done
        self._started = self._said = time.monotonic()

    def advance(self, done: int, total: int, num_tokens: int, notes: Sequence[str] = ()) -> None:
        """Say, at most every ten seconds, that `done` of `total` is done, with `num_tokens` tokens since the start."""
        now = time.monotonic()
        if done < total and now - self._said < SECONDS_BETWEEN_LINES:
            return
        self._said, elapsed = now, max(now - self._started, 1e-9)
        left = elapsed / max(done - self._first, 1) * (total - done)
        ends = f"{duration(elapsed)} elapsed" if done == total else f"{duration(left)} left"
        rate = f"{num_tokens / elapsed:.0f} tokens/s"
        say("  ".join([f"{self._what}{done:,}/{total:,} {self._unit}", *notes, rate, ends]))

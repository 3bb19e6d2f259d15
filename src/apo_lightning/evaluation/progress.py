"""Progress of an evaluation: one changing line on a terminal, occasional lines elsewhere."""

import math
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from apo_lightning.common.formatting import duration

SECONDS_BETWEEN_LINES = 10.0
"""Time between two printed lines where there is no terminal."""


class Progress:
    """Work done, tokens/s and time left: a line that changes on a terminal, and is printed every ten seconds elsewhere.

    Args:
        what: the beginning of the line.
        unit: of the work.
        is_shown: False on all ranks but the first.
    """

    def __init__(self, what: str, unit: str, *, is_shown: bool = True) -> None:
        self._what, self._unit, self._is_shown = what, unit, is_shown
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._started = self._last = time.monotonic()
        self._first = self._done = self._total = self._tokens = 0
        self._notes: Sequence[str] = ()
        self._printed = ""

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *exception: object) -> None:
        """Leave the last state on the terminal and release it."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._is_shown:
            self._print()

    def start(self, done: int, total: int) -> None:
        """Show the line, with `done` of `total` finished earlier."""
        self._first, self._done, self._total = done, done, total
        self._started = self._last = time.monotonic()
        if self._is_shown and self._console.is_terminal:
            self._live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def advance(self, done: int, total: int, num_tokens: int, notes: Sequence[str] = ()) -> None:
        """Update the line after `done` of `total`, which took `num_tokens` tokens since the start."""
        self._done, self._total, self._tokens, self._notes = done, total, num_tokens, notes
        now = time.monotonic()
        if self._is_shown and self._live is None and now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            self._print()

    def _print(self) -> None:
        line = self._line()
        if line.plain != self._printed:
            self._console.print(line, soft_wrap=True)
        self._printed = line.plain

    def _line(self) -> Text:
        elapsed, new = time.monotonic() - self._started, self._done - self._first
        left = elapsed / new * (self._total - self._done) if new else math.nan
        parts = [f"{self._what}{self._done:,}/{self._total:,} {self._unit}", *self._notes]
        if new:
            parts.append(f"{self._tokens / max(elapsed, 1e-9):.0f} tokens/s")
        parts.append(f"{duration(elapsed)} elapsed" if self._done == self._total else f"{duration(left)} left")
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")

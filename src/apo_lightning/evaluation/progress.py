"""What a user watches while samples come in: one line on a terminal, a line a batch elsewhere."""

import math
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from apo_lightning.evaluation.records import Sample
from apo_lightning.formatting import duration

SECONDS_BETWEEN_LINES = 10.0
"""Where there is no terminal."""


class Progress:
    """Samples done, how many were correct, tokens a second, time left.

    Args:
        benchmark: its name.
        speaks: False on all ranks but the first.
    """

    def __init__(self, benchmark: str, *, speaks: bool) -> None:
        self.benchmark = benchmark
        self.speaks = speaks
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._done = self._total = self._resumed = 0
        self._new = self._correct = self._truncated = self._tokens = 0
        self._started = self._last_line = time.monotonic()

    def start(self, done: int, total: int) -> None:
        """`done` of `total` samples are there already."""
        self._done, self._total, self._resumed = done, total, done
        self._started = self._last_line = time.monotonic()
        if not self.speaks:
            return
        if done:
            self._console.print(f"{self.benchmark}: {done} of {total} samples are there already", soft_wrap=True)
        if self._console.is_terminal and done < total:
            self._live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def add(self, samples: Sequence[Sample]) -> None:
        """A batch was written."""
        self._done += len(samples)
        self._new += len(samples)
        self._correct += sum(sample.status == "correct" for sample in samples)
        self._truncated += sum(sample.finish_reason == "length" for sample in samples)
        self._tokens += sum(sample.num_tokens for sample in samples)
        now = time.monotonic()
        if self.speaks and self._live is None and now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            self._console.print(self._line(), soft_wrap=True)

    def stop(self) -> None:
        """Leave the last state on the screen."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self.speaks and self._new:
            self._console.print(self._line(), soft_wrap=True)

    def _line(self) -> Text:
        elapsed = time.monotonic() - self._started
        left = elapsed / self._new * (self._total - self._done) if self._new else math.nan
        parts = [f"{self.benchmark}: {self._done}/{self._total} samples"]
        if self._new:
            parts.append(f"{self._correct / self._new:.1%} correct")
            parts.append(f"{self._truncated / self._new:.1%} truncated")
            parts.append(f"{self._tokens / max(elapsed, 1e-9):.0f} tokens/s")
        finished = self._done == self._total
        parts.append(f"{duration(elapsed)} elapsed" if finished else f"{duration(left)} left")
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")

"""Progress of an evaluation: one changing line on a terminal, occasional lines elsewhere."""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from apo_lightning.common.formatting import duration
from apo_lightning.evaluation.records import Sample
from apo_lightning.types import count_statuses

SECONDS_BETWEEN_LINES = 10.0
"""Time between two printed lines where there is no terminal."""


class StatusLine(ABC):
    """Work done, tokens/s and time left: a line that changes on a terminal, and is printed every ten seconds elsewhere.

    Args:
        is_shown: False on all ranks but the first.
    """

    def __init__(self, *, is_shown: bool) -> None:
        self._is_shown = is_shown
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._started = self._last = time.monotonic()
        self._printed = ""
        self._done = self._total = 0
        self._new = 0
        """Part of the done work that was done since the start."""
        self._tokens = 0

    def open(self) -> None:
        """Show the line."""
        self._started = self._last = time.monotonic()
        if self._is_shown and self._console.is_terminal:
            self._live = Live(get_renderable=self._line, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()

    def update(self) -> None:
        """Print the line if there is no terminal and the last print is ten seconds old."""
        now = time.monotonic()
        if self._is_shown and self._live is None and now - self._last >= SECONDS_BETWEEN_LINES:
            self._last = now
            self._print()

    def close(self) -> None:
        """Leave the last state on the terminal and release it."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
        if self._is_shown:
            self._print()

    @abstractmethod
    def parts(self) -> list[str]:
        """The work done, as the beginning of the line."""

    def _print(self) -> None:
        line = self._line()
        if line.plain != self._printed:
            self._console.print(line, soft_wrap=True)
        self._printed = line.plain

    def _line(self) -> Text:
        elapsed = time.monotonic() - self._started
        left = elapsed / self._new * (self._total - self._done) if self._new else math.nan
        parts = self.parts()
        if self._new:
            parts.append(f"{self._tokens / max(elapsed, 1e-9):.0f} tokens/s")
        parts.append(f"{duration(elapsed)} elapsed" if self._done == self._total else f"{duration(left)} left")
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")


class TokenProgress(StatusLine):
    """Progress in tokens: `with TokenProgress("solution tokens") as p: work(p.advance)`."""

    def __init__(self, what: str) -> None:
        super().__init__(is_shown=True)
        self._what = what

    def __enter__(self) -> "TokenProgress":
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def advance(self, done: int, total: int) -> None:
        """Update the line after `done` of `total` tokens."""
        self._done = self._new = self._tokens = done
        self._total = total
        self.update()

    def parts(self) -> list[str]:
        """See `StatusLine.parts`."""
        return [f"{self._done:,}/{self._total:,} {self._what}"]


class Progress(StatusLine):
    """Samples done, share correct and truncated.

    Args:
        benchmark: its name.
        is_shown: False on all ranks but the first.
    """

    def __init__(self, benchmark: str, *, is_shown: bool) -> None:
        super().__init__(is_shown=is_shown)
        self.benchmark = benchmark
        self._correct = self._truncated = 0

    def start(self, done: int, total: int) -> None:
        """Begin with `done` of `total` samples finished."""
        self._done, self._total = done, total
        if self._is_shown and done:
            self._console.print(f"{self.benchmark}: {done} of {total} samples exist already", soft_wrap=True)
        if done < total:
            self.open()

    def add(self, samples: Sequence[Sample]) -> None:
        """Count a batch of written samples."""
        self._done += len(samples)
        self._new += len(samples)
        self._correct += count_statuses(sample.status for sample in samples)["correct"]
        self._truncated += sum(sample.finish_reason == "length" for sample in samples)
        self._tokens += sum(sample.num_tokens for sample in samples)
        self.update()

    def stop(self) -> None:
        """Leave the last state on the terminal."""
        if self._new:
            self.close()

    def parts(self) -> list[str]:
        """See `StatusLine.parts`."""
        parts = [f"{self.benchmark}: {self._done}/{self._total} samples"]
        if self._new:
            parts.append(f"{self._correct / self._new:.1%} correct")
            parts.append(f"{self._truncated / self._new:.1%} truncated")
        return parts

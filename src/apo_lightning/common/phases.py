"""How long the phases of a step take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PhaseClock:
    """Seconds of wall-clock time in each named phase.

    A phase inside another one *pauses* it, so every second belongs to exactly one phase. Work queued on an accelerator
    is charged to the phase that waits for it. `now` is a monotonic clock [s].

    Example:
        >>> ticks = iter([0.0, 3.0, 5.0, 6.0])  # read on entering and on leaving each phase
        >>> clock = PhaseClock(now=lambda: next(ticks))
        >>> with clock.phase("update"):
        ...     with clock.phase("sync"):
        ...         pass
        >>> clock.take()
        {'update': 4.0, 'sync': 2.0}
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self.now = now
        self._open: list[str] = []
        self._since = 0.0
        self._seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Charge the time until the block is left, normally or by an exception, to `name`."""
        self._charge()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last call, in the order they were first entered; an open one continues."""
        if self._open:
            self._charge()
        seconds, self._seconds = self._seconds, {}
        return seconds

    def _charge(self) -> None:
        now = self.now()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


class StepTimer:
    """How long each of the `phases` of a step took, and the whole of it, from the end of the step before to its end.

    The steps of a run add up to its time without pauses. `step` minus the sum of all phases is time in no phase.
    """

    def __init__(self, clock: PhaseClock, phases: tuple[str, ...]) -> None:
        self.clock = clock
        self.phases = phases
        self._began = self._paused = self._between = 0.0

    def begin(self) -> None:
        """Begin before the first step of a run; what the clock has counted until then belongs to no step."""
        self.clock.take()
        self._began = self.clock.now()

    def enter(self) -> None:
        """Start the step's own work, after callbacks, logging, checkpoints and the loading of its prompts."""
        self._between = self.clock.now() - self._began

    def pause(self) -> None:
        """Stop counting: the time until `resume` belongs to no step."""
        self._paused = self.clock.now()

    def resume(self) -> None:
        """Count time towards the step again."""
        self._began += self.clock.now() - self._paused

    def take(self) -> dict[str, float]:
        """Seconds of each phase, and of the whole as `step`; the next step starts."""
        seconds = {"between_steps": self._between} | dict.fromkeys(self.phases, 0.0) | self.clock.take()
        began, self._began = self._began, self.clock.now()
        return seconds | {"step": self._began - began}

"""How long the phases of a step take."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class PhaseClock:
    """Seconds of wall-clock time in each named phase.

    A phase inside another one *pauses* it, so every second belongs to exactly one phase and the sum over phases never
    exceeds the time that passed. Work queued on an accelerator is charged to the phase that waits for it.

    Args:
        now: the time in seconds; anything monotonic.

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
        """Seconds of each phase since the last call, in the order they were first entered; starts again from nothing.

        An open phase is charged up to now, and continues.
        """
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
    """How long each phase of a step took, and the whole of it: from the end of the step before to its own end.

    So the steps of a run add up to its time without pauses. `step` minus the sum of all phases is time in no phase.

    Args:
        clock: times the phases.
        phases: those of a step, in order. One that did not run took 0.0 s.

    Example:
        A step begins at 1 s, its own work at 2 s; a phase runs from 3 s to 5 s, and the step ends at 6 s.

        >>> ticks = iter([1.0, 2.0, 3.0, 5.0, 6.0])
        >>> timer = StepTimer(PhaseClock(now=lambda: next(ticks)), ("generate", "update"))
        >>> timer.begin()
        >>> timer.enter()
        >>> with timer.clock.phase("update"):
        ...     pass
        >>> timer.take()
        {'between_steps': 1.0, 'generate': 0.0, 'update': 2.0, 'step': 5.0}
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

"""Being asked to stop: a batch system says so a little before it ends a run by force."""

import signal
from collections.abc import Callable
from types import FrameType

import lightning.pytorch as pl

from apo_lightning.types import Completion

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Remembers the signal; the run looks at it where it can be saved."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._pass_on: Callable[[int], None] | None = None

    def listen(self, trainer: pl.Trainer) -> None:
        """Take the stop signals over from Lightning, whose handler communicates between ranks wherever they are.

        Call it in each of the trainer's functions, after Lightning has put its handlers in place.
        """
        launcher = trainer.strategy.launcher
        self._pass_on = None if launcher is None else launcher.kill
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first = self.signal is None
        self.signal = signal.Signals(number)
        if is_first and self._pass_on is not None:
            # Ranks that this process started; a batch system may know of this one alone.
            self._pass_on(number)

    def check(self, index: int, completion: Completion) -> None:
        """A listener of an engine: ends a generation that nobody will wait for.

        Raises:
            GenerationStopped: a signal has come.
        """
        if self.signal is not None:
            raise GenerationStopped


class GenerationStopped(Exception):  # noqa: N818 - no error
    """A rollout was given up."""

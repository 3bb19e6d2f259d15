"""Stop signals: a batch system sends one shortly before it kills a run."""

import signal
from collections.abc import Callable
from types import FrameType

import lightning.pytorch as pl

from apo_lightning.types import Completion

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """Remembers a stop signal; the run checks it at the points where it can be saved."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._pass_on: Callable[[int], None] | None = None

    def listen(self, trainer: pl.Trainer) -> None:
        """Replace Lightning's handlers of the stop signals, which would start a collective at any point of a step.

        Call it in each of the trainer's functions, after Lightning has installed its handlers.
        """
        launcher = trainer.strategy.launcher
        self._pass_on = None if launcher is None else launcher.kill
        for number in STOP_SIGNALS:
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        is_first = self.signal is None
        self.signal = signal.Signals(number)
        if is_first and self._pass_on is not None:
            # For ranks that this process launched: a batch system may signal only this process.
            self._pass_on(number)

    def check(self, index: int, completion: Completion) -> None:
        """A listener of an engine that ends the generation after a stop signal.

        Raises:
            GenerationStopped: a signal was received.
        """
        if self.signal is not None:
            raise GenerationStopped


class GenerationStopped(Exception):  # noqa: N818 - no error
    """The sampling of a rollout was abandoned after a stop signal."""

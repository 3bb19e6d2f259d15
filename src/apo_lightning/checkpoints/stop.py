"""Stop signals: a batch system sends one shortly before it kills a run, and Ctrl-C is one."""

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

import lightning.pytorch as pl

from apo_lightning.common.launch import is_first_process
from apo_lightning.errors import Preempted
from apo_lightning.types import Completion

STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class StopRequest:
    """Remembers a stop signal; the run checks it at the points where it can be saved."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._pass_on: Callable[[int], None] | None = None
        self._before: dict[int, Any] = {}
        """The handlers that were replaced first."""

    def listen(self, trainer: pl.Trainer) -> None:
        """Replace Lightning's handlers of the stop signals, which would start a collective at any point of a step.

        Call it in each of the trainer's functions, after Lightning has installed its handlers.
        """
        launcher = trainer.strategy.launcher
        self._pass_on = None if launcher is None else launcher.kill
        for number in STOP_SIGNALS:
            # A process that ignores Ctrl-C, such as one of the laboratory, is ended by its parent.
            if signal.getsignal(number) is not signal.SIG_IGN:
                before = signal.signal(number, self._note)
                self._before.setdefault(number, before)

    def close(self) -> None:
        """Let Ctrl-C do what it did before; the handlers of the other signals are restored by Lightning."""
        if signal.SIGINT in self._before:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            self._note_interrupt()
        elif self.signal is None and self._pass_on is not None:
            # For ranks that this process launched: a batch system may signal only this process.
            self._pass_on(number)
        self.signal = signal.Signals(number)

    def _note_interrupt(self) -> None:
        """Ctrl-C, which a terminal sends to every rank: passed on, it would count as a second one there."""
        if self.signal is signal.SIGINT:
            raise Preempted("ended at once by a second Ctrl-C, with what was saved before")
        # Not through Rich or a buffer: the signal may have come in the middle of another print.
        with contextlib.suppress(OSError):
            if is_first_process():
                os.write(1, b"\nthe run ends where it can be saved; Ctrl-C again ends it at once\n")

    def is_requested(self) -> bool:
        """Whether a stop signal has arrived."""
        return self.signal is not None

    def check(self, index: int, completion: Completion) -> None:
        """A listener of an engine that ends the generation after a stop signal.

        Raises:
            GenerationStopped: a signal was received.
        """
        if self.signal is not None:
            raise GenerationStopped


class GenerationStopped(Exception):  # noqa: N818 - no error
    """The sampling of a rollout was abandoned after a stop signal."""

"""A rank that fails ends all ranks at once, and the user reads one line that names it and its reason."""

import logging
import os
import signal
import subprocess
import threading
import time
from traceback import print_exception
from types import TracebackType
from typing import NoReturn

import lightning.pytorch as pl

from apo_lightning.distributed.lifeline import Lifeline, connect
from apo_lightning.distributed.lightning_private import launched_processes
from apo_lightning.errors import Preempted
from apo_lightning.rollout.process_guard import print_to_stderr
from apo_lightning.run.user_message import user_message

_HEARING_S = 2.0
"""How long an error that may come of another rank's end waits for word of that [s]."""
_LEAVING_S = 30.0
"""How long a rank may take to clean up [s]: after a failure that may be a collective, which no other joins."""
_REAPING_S = 5.0
"""How long the first rank of a run that failed waits for the processes that Lightning's launcher started [s], before
it kills them."""

_logger = logging.getLogger(__name__)


class FailFast(pl.Callback):
    """First of the trainer's callbacks, and a context around all that the trainer does. Alone it does nothing.

    Without it the other ranks wait in their next collective, over NCCL until the process group's time-out, or see
    nothing but a closed connection. It works under any launcher: torchrun and srun end the others late or not at all.
    """

    def __init__(self) -> None:
        self._rank = 0
        self._lifeline: Lifeline | None = None
        self._launched: list[subprocess.Popen[bytes]] = []
        """Lightning's own list of the processes that its launcher started, by which it passes signals on."""
        self._children: list[subprocess.Popen[bytes]] = []
        """The processes of `_launched`, taken over once the run is failing."""
        self._is_failing = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Connect the ranks; the process group exists. Once per trainer function, and the connections stay."""
        if self._lifeline is None and trainer.world_size > 1:
            self._rank = trainer.global_rank
            self._launched = launched_processes(trainer)
            host = os.environ["MASTER_ADDR"] if trainer.num_nodes > 1 else None
            connections = connect(self._rank, trainer.world_size, host, trainer.strategy.broadcast)
            self._lifeline = Lifeline(self._rank, connections, self._on_loss)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Tell the other ranks before Lightning tears anything down."""
        self._launched = launched_processes(trainer)
        self._report(exception)

    def __enter__(self) -> "FailFast":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Take leave of the other ranks, or end them. An error of another rank than the first goes no further."""
        if error is not None and not isinstance(error, SystemExit | Preempted):
            self._report(error)
            self._reap()
            if self._lifeline is not None and self._rank > 0:
                if user_message(error) is None:
                    print_exception(error)
                # The interpreter's own end would wait, in the process group's destructor, for the first rank.
                self._leave(self._rank, _reason(error), speaks=False)
        if self._lifeline is not None:
            self._lifeline.close()
        if error is None:
            # The next job of a sweep needs their memory.
            self._take_children()
            self._reap(_LEAVING_S)

    def _report(self, error: BaseException) -> None:
        """Tell the other ranks, unless this one leaves on purpose."""
        if isinstance(error, SystemExit | Preempted) or self._is_failing:
            return
        self._is_failing = True
        self._take_children()
        if self._lifeline is None:
            return
        if user_message(error) is None:
            time.sleep(_HEARING_S)
        if not self._lifeline.fail(_reason(error)):
            time.sleep(_LEAVING_S)  # another rank's end is being dealt with, and this process with it
        timer = threading.Timer(_LEAVING_S, self._leave, [self._rank, _reason(error)], {"speaks": self._rank == 0})
        timer.daemon = True
        timer.start()

    def _on_loss(self, rank: int, reason: str | None) -> None:
        """End this process, as another has: the main thread may be in a collective, where no exception reaches it."""
        self._take_children()
        ended = self._reap()
        if reason is not None:
            self._leave(rank, reason, speaks=self._rank == 0)
        how = f"was ended by {ended[rank]}" if rank in ended else "ended without a word"
        hint = "if nobody did that, its machine ran out of memory: see the kernel's log (dmesg)"
        # The first rank, or where that is the one, the second.
        self._leave(rank, f"{how}; {hint}", speaks=self._rank == 0 or (self._rank == 1 and rank == 0))

    def _leave(self, rank: int, reason: str, *, speaks: bool) -> NoReturn:
        line = f"rank {rank}: {reason}"
        _logger.error("%s", line)
        logging.shutdown()
        if speaks:
            # The main thread may be starting vLLM, with its standard error in a file that ends with this process.
            print_to_stderr(f"error: {line}")
        os._exit(1)

    def _take_children(self) -> None:
        """Take the launched processes over: from here on they end with this process, and not it with them.

        Lightning's observer reads the same list every few seconds, and kills this process when a child has failed: the
        reason would stay unsaid.
        """
        self._children += self._launched
        self._launched.clear()

    def _reap(self, patience_s: float = _REAPING_S) -> dict[int, str]:
        """See the end of the children, within so many seconds; the signals that ended some of them, by rank."""
        deadline = time.monotonic() + patience_s
        ended = {}
        for rank, child in enumerate(self._children, start=1):
            try:
                child.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
                continue
            if child.returncode < 0:
                ended[rank] = signal.Signals(-child.returncode).name
        return ended


def _reason(error: BaseException) -> str:
    return user_message(error) or " ".join(f"{type(error).__name__}: {error}".split())

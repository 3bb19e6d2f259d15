"""If one rank fails, all ranks end at once, and one line on the terminal names that rank and the reason.

Measured on two CPU ranks, the surviving one blocked in a collective: all processes end after 0.1 to 8 s. Without this,
torchrun takes 37 to 49 s, and Lightning's launcher leaves rank 1 running if rank 0 fails.
"""

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

from apo_lightning.distributed.lightning_private import launched_processes
from apo_lightning.distributed.rank_watchdog import RankWatchdog, connect
from apo_lightning.errors import Preempted
from apo_lightning.rollout.process_guard import print_to_stderr
from apo_lightning.run.user_message import user_message

_CAUSE_WAIT_S = 2.0
"""How long an unexpected error waits for a message from another rank, which may be its cause, before the report [s]."""
_CLEANUP_S = 30.0
"""How long a rank may clean up [s]; the clean-up may hang in a collective that no other rank joins."""
_CHILD_WAIT_S = 5.0
"""How long the first rank of a failed run waits for the processes that Lightning's launcher started, before it kills
them [s]."""

_logger = logging.getLogger(__name__)


class FailFast(pl.Callback):
    """The first of the trainer's callbacks, and a context around all calls of the trainer. No effect with one rank."""

    def __init__(self) -> None:
        self._rank = 0
        self._watchdog: RankWatchdog | None = None
        self._launched: list[subprocess.Popen[bytes]] = []
        """Lightning's own list of the processes that its launcher started."""
        self._children: list[subprocess.Popen[bytes]] = []
        """The processes of `_launched`, once the run ends."""
        self._is_failing = False

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Connect the ranks, at the first call; the process group exists."""
        if self._watchdog is None and trainer.world_size > 1:
            self._rank = trainer.global_rank
            self._launched = launched_processes(trainer)
            host = os.environ["MASTER_ADDR"] if trainer.num_nodes > 1 else None
            connections = connect(self._rank, trainer.world_size, host, trainer.strategy.broadcast)
            self._watchdog = RankWatchdog(self._rank, connections, self._on_failure)

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Report the error to the other ranks before Lightning's teardown."""
        self._launched = launched_processes(trainer)
        self._report(exception)

    def __enter__(self) -> "FailFast":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Sign off from the other ranks, or end them; after an error, ranks other than the first end here."""
        if error is not None and not isinstance(error, SystemExit | Preempted):
            self._report(error)
            self._reap()
            if self._watchdog is not None and self._rank > 0:
                if user_message(error) is None:
                    print_exception(error)
                # A normal exit would wait for the first rank in the process group's destructor.
                self._exit(self._rank, _reason(error), prints=False)
        if self._watchdog is not None:
            self._watchdog.close()
        if error is None:
            # The next job of a sweep needs their memory.
            self._take_children()
            self._reap(_CLEANUP_S)

    def _report(self, error: BaseException) -> None:
        """Report the error to the other ranks, unless it is an intended exit."""
        if isinstance(error, SystemExit | Preempted) or self._is_failing:
            return
        self._is_failing = True
        self._take_children()
        if self._watchdog is None:
            return
        if user_message(error) is None:
            time.sleep(_CAUSE_WAIT_S)
        if not self._watchdog.fail(_reason(error)):
            time.sleep(_CLEANUP_S)  # another rank failed first: `_on_failure` is ending this process
        timer = threading.Timer(_CLEANUP_S, self._exit, [self._rank, _reason(error)], {"prints": self._rank == 0})
        timer.daemon = True
        timer.start()

    def _on_failure(self, rank: int, reason: str | None) -> None:
        """End this process from this thread: the main thread may be in a collective, where no exception reaches it."""
        self._take_children()
        ended = self._reap()
        if reason is not None:
            self._exit(rank, reason, prints=self._rank == 0)
        how = f"killed by {ended[rank]}" if rank in ended else "ended without a message"
        hint = "if nobody did that, its machine ran out of memory: see the kernel's log (dmesg)"
        # The first rank prints it or, if that one has ended, the second.
        self._exit(rank, f"{how}; {hint}", prints=self._rank == 0 or (self._rank == 1 and rank == 0))

    def _exit(self, rank: int, reason: str, *, prints: bool) -> NoReturn:
        line = f"rank {rank}: {reason}"
        _logger.error("%s", line)
        logging.shutdown()
        if prints:
            # While the main thread starts vLLM, standard error is redirected to a file that is lost at exit.
            print_to_stderr(f"error: {line}")
        os._exit(1)

    def _take_children(self) -> None:
        """Remove the launched processes from Lightning's list.

        Its observer reads the list every 5 s and, if a child has failed, kills this process before it can print the
        reason.
        """
        self._children += self._launched
        self._launched.clear()

    def _reap(self, patience_s: float = _CHILD_WAIT_S) -> dict[int, str]:
        """Wait for the children and then kill them; returns rank → signal for those ended by a signal."""
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

"""A callback that ends the run, or refuses a call, at the n-th place where the run changes its folder."""

import errno
import os
import signal
import sys
from pathlib import Path

import lightning.pytorch as pl

CHANGES = {"open": 0, "os.rename": 1, "os.remove": 0, "os.rmdir": 0, "os.mkdir": 0}
"""Python's audit event of a call → the argument that says what it changes."""


class Fault(pl.Callback):
    """Kills the process before the change number `at`, or lets that call fail as on a full disk; 0: counts them."""

    def __init__(self, folder: str, counts: str, at: int = 0, kills: bool = True) -> None:
        self.folder, self.at, self.kills = folder, at, kills
        self.counts = os.open(counts, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.num_changes = 0
        sys.addaudithook(self.see)

    def see(self, event: str, args: tuple) -> None:
        if event not in CHANGES or (event == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            return
        changed = args[CHANGES[event]]
        # The path that a tree is removed by is relative to a descriptor.
        is_own = isinstance(changed, str | Path) and (event == "os.remove" or str(changed).startswith(self.folder))
        if not is_own:
            return
        self.num_changes += 1
        os.write(self.counts, f"{event} {changed}\n".encode())
        if self.num_changes == self.at:
            if self.kills:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, "No space left on device")

"""Executes cells one after the other, each in a child process, and says which are done.

Several processes may share the cells of one folder: whoever works on a cell holds a lock on its file `lock`, which the
kernel releases when the last process that has the file open ends. The child has it open too.
"""

import fcntl
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Literal

from apo_lightning.common.console import say
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.common.formatting import duration
from apo_lightning.errors import ConfigError, Preempted
from apo_report.paper.cells import PaperCell, config_of, identity

RECORD, LOCK, OUTPUT = "cell.json", "lock", "output.txt"
"""Files in a cell's folder: what it was made with; who works on it; what its command printed."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Passed on to the child, which saves what it has."""
State = Literal["done", "stale", "running", "begun", "missing"]
"""Stale: made with another configuration than now. Begun: not finished, and nobody works on it."""


def state_of(cell: PaperCell) -> State:
    """The state of a cell. Raises `ConfigError` if its record cannot be read."""
    if (state := _recorded(cell)) != "begun":
        return state
    with _lock(cell) as lock:
        return "running" if lock is None else "begun"


def owner_of(cell: PaperCell) -> str:
    """The process that works on a running cell."""
    return (cell.folder / LOCK).read_text().strip()


def work_off(cells: Sequence[PaperCell], limit: int | None) -> None:
    """Execute cells that are not done, in their order, until `limit` of them are finished or none can be taken.

    A cell waits for the run whose weights it reads. One that fails is not tried again by this process.

    Raises:
        ConfigError: a cell is stale; or cells failed, raised after the others.
        Preempted: a stop signal arrived, and the cell has saved what it has.
    """
    if (tasks := int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))) > 1:
        raise ConfigError(
            f"srun started {tasks} tasks of apo paper run on the same GPUs: give one task per node (--ntasks=1); a "
            "cell starts its own ranks"
        )
    if stale := [cell for cell in cells if state_of(cell) == "stale"]:
        raise ConfigError(
            f"{len(stale)} of {len(cells)} cells were made with another configuration: give another output_dir, or "
            f"move their folders away, {stale[0].folder} first (apo paper status lists them)"
        )
    failed: list[PaperCell] = []
    num_finished = 0
    while limit is None or num_finished < limit:
        config_of.cache_clear()  # the user may have edited a configuration meanwhile
        cell = next((cell for cell in cells if cell not in failed and _can_begin(cell)), None)
        if cell is None:
            break
        with _lock(cell) as lock:
            # Another process may have taken the cell, or finished it, since its state was read.
            if lock is None or _recorded(cell) == "done":
                continue
            is_finished = _execute(cell, lock)
        num_finished += is_finished
        failed += [] if is_finished else [cell]
    say(f"{sum(state_of(cell) == 'done' for cell in cells)} of {len(cells)} cells are done")
    if failed:
        raise ConfigError(
            f"{len(failed)} of {len(cells)} cells failed: {failed[0].folder / OUTPUT} says why of the first; the same "
            "command tries them again"
        )


def _can_begin(cell: PaperCell) -> bool:
    return state_of(cell) in ("begun", "missing") and (cell.needs is None or state_of(cell.needs) == "done")


def _recorded(cell: PaperCell) -> State:
    """The state that the record tells."""
    path = cell.folder / RECORD
    if not path.is_file():
        return "missing"
    try:
        record = json.loads(path.read_bytes())
        if record["identity"] != identity(cell):
            return "stale"
        return "done" if record["is_finished"] else "begun"
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no record of a cell ({error}): move {cell.folder} away") from error


def _record(cell: PaperCell, *, is_finished: bool) -> None:
    content = {"identity": identity(cell), "is_finished": is_finished, "arguments": cell.arguments}
    write_atomically(cell.folder / RECORD, to_json(content, indent=1))


@contextmanager
def _lock(cell: PaperCell) -> Iterator[IO[str] | None]:
    """Hold the lock of a cell; None if another process holds it."""
    cell.folder.mkdir(parents=True, exist_ok=True)
    with (cell.folder / LOCK).open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def _execute(cell: PaperCell, lock: IO[str]) -> bool:
    """Run the cell's command in a child process, and return whether it succeeded."""
    lock.truncate(0)
    lock.write(f"process {os.getpid()} on {platform.node()}\n")
    lock.flush()
    say(f"{'resumed' if _recorded(cell) == 'begun' else 'begun':<8} {cell.name}")
    started = time.monotonic()
    _record(cell, is_finished=False)
    with (cell.folder / OUTPUT).open("ab") as output:
        child = subprocess.Popen(
            [sys.executable, "-m", "apo_lightning", *cell.arguments],
            # With SLURM's variables Lightning would expect SLURM to have started a task for each GPU.
            env={name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[lock.fileno()],
        )
        before = {number: signal.signal(number, lambda number, _: child.send_signal(number)) for number in STOP_SIGNALS}
        try:
            status = child.wait()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    seconds = duration(time.monotonic() - started)
    if status in (Preempted.STATUS, *(-number for number in STOP_SIGNALS)):
        raise Preempted(f"stopped  at {cell.name} after {seconds}: the same command continues")
    if status:
        say(f"failed   {cell.name} after {seconds}: see {cell.folder / OUTPUT}")
        return False
    _record(cell, is_finished=True)
    say(f"done     {cell.name} in {seconds}")
    return True

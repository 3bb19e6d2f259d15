"""Works off cells: takes the next one, executes it in a child process, and leaves a record."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from apo_lab.paper.cells import Cell, config_of
from apo_lab.paper.claims import RENEW_SECONDS, Claim, ClaimLost, living_owner, take
from apo_lab.paper.states import current_record, is_ready, move_aside, state_of, write_record_of
from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration
from apo_lightning.errors import ConfigError, Preempted

OUTPUT = "output.txt"
"""In the folder of a cell: what its command printed."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
"""Passed on to the child, which saves what it has."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG of Linux."""


def work_off(cells: Sequence[Cell], root: Path, limit: int | None) -> None:
    """Execute cells that are not done, in their order, until `limit` of them are finished or none can be taken.

    A cell waits for the run whose weights it reads. One that fails is not tried again by this process.

    Raises:
        ConfigError: a cell failed, raised after the others.
        Preempted: a stop signal arrived, and the cell has saved what it has.
    """
    _refuse_several_tasks()
    failed: list[Cell] = []
    num_finished = 0
    while limit is None or num_finished < limit:
        taken = _take_next([cell for cell in cells if cell not in failed], root)
        if taken is None:
            break
        cell, claim = taken
        try:
            is_finished = _execute(cell, claim)
        except ClaimLost:
            say(f"lost     {cell.name}: not renewed in time, and another process took it")
            is_finished = False
        finally:
            claim.release()
        num_finished += is_finished
        failed += [] if is_finished else [cell]
    _say_what_is_left(cells, failed)


def _refuse_several_tasks() -> None:
    if int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1:
        raise ConfigError(
            f"srun started {os.environ['SLURM_STEP_NUM_TASKS']} tasks of apo paper run on the same GPUs: give one task "
            "per node (--ntasks=1); a cell starts its own ranks"
        )


def _take_next(cells: Sequence[Cell], root: Path) -> tuple[Cell, Claim] | None:
    """Claim the first cell that is not done and whose weights are there; None if there is none."""
    config_of.cache_clear()  # the user may have edited a configuration meanwhile
    for cell in cells:
        if state_of(cell) == "done" or not is_ready(cell):
            continue
        claim = take(cell.folder)
        if claim is None:
            continue
        # Again: the process that held the claim until now may have finished the cell.
        state = state_of(cell)
        if state == "done":
            claim.release()
            continue
        if state == "stale":
            say(f"stale    {cell.name}: moved to {move_aside(cell, root)}")
        return cell, claim
    return None


def _execute(cell: Cell, claim: Claim) -> bool:
    """Run the cell's command in a child process, and return whether it succeeded."""
    is_resumed, started = state_of(cell) == "begun", time.monotonic()
    record = current_record(cell, is_finished=False)
    write_record_of(cell, record)
    say(f"{'resumed' if is_resumed else 'begun':<8} {cell.name}")
    with (cell.folder / OUTPUT).open("ab") as output, _child(cell, output.fileno()) as (child, signals):
        status = _wait(child, claim)
    seconds = duration(time.monotonic() - started)
    if status == 0:
        write_record_of(cell, replace(record, is_finished=True))
        say(f"done     {cell.name} in {seconds}")
    if signals or status == Preempted.STATUS:
        raise Preempted(f"stopped  at {cell.name} after {seconds}: the same command continues")
    if status:
        say(f"failed   {cell.name} after {seconds}: see {cell.folder / OUTPUT}")
    return status == 0


@contextmanager
def _child(cell: Cell, output: int) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """The process of a cell, which does not outlive this one, and the stop signals that were passed on to it."""
    child = subprocess.Popen(
        [sys.executable, "-m", "apo_lightning", *cell.arguments],
        # With SLURM's variables Lightning would expect SLURM to have started a task for each GPU.
        env={name: value for name, value in os.environ.items() if not name.startswith("SLURM_")},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        preexec_fn=_die_with_parent(os.getpid()),
    )
    signals: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        child.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in STOP_SIGNALS}
    try:
        yield child, signals
    finally:
        child.kill()  # nothing where it has ended
        child.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _die_with_parent(parent: int) -> Callable[[], None]:
    """For a child before its program begins: it is killed when this process ends, however that happens.

    A child that went on would write into a folder that another process has claimed.
    """
    prctl = ctypes.CDLL(None).prctl  # loaded here: between fork and exec a lock of the loader may be held

    def ask() -> None:
        prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _wait(child: subprocess.Popen[bytes], claim: Claim) -> int:
    """The status of the child; the claim is renewed until it ends. Raises `ClaimLost` if another process has it."""
    while True:
        try:
            return child.wait(timeout=RENEW_SECONDS)
        except subprocess.TimeoutExpired:
            claim.renew()


def _say_what_is_left(cells: Sequence[Cell], failed: Sequence[Cell]) -> None:
    left = [cell for cell in cells if state_of(cell) != "done"]
    busy = {cell.name: owner for cell in left if (owner := living_owner(cell.folder))}
    for name, owner in busy.items():
        say(f"running  {name}: {owner}")
    say(f"{len(cells) - len(left)} of {len(cells)} cells are done")
    if failed:
        raise ConfigError(
            f"{len(failed)} of {len(cells)} cells failed: {failed[0].folder / OUTPUT} says why of the first; the same "
            "command tries them again"
        )

"""Claims: a lock file for each cell that somebody works on, so that no two processes take the same cell.

The file is made complete under another name and then linked to its own, which fails where it exists: on one machine and
on a shared file system exactly one of several processes succeeds. Its owner renews its time every `RENEW_SECONDS`. A
claim is dead if its time is older than `DEAD_SECONDS` by the clock of the file system, or at once if its process was on
this machine and no longer exists. Replacing a dead claim takes a claim of its own, so that one process does it.
"""

import json
import os
import platform
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from apo_lightning.common.files import to_json

RENEW_SECONDS = 60.0
DEAD_SECONDS = 900.0
"""Fifteen missed renewals: a file system may hang for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that works on a cell."""

    host: str
    pid: int
    job: str
    """SLURM's number of the job, with that of the array's task; empty outside of SLURM."""
    token: str
    """Tells this claim from every other one."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f", job {self.job}" if self.job else "")


class ClaimLost(Exception):  # noqa: N818 - no error
    """Another process holds the claim: this one did not renew it in time."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A cell that this process works on."""

    path: Path
    owner: Owner

    def renew(self) -> None:
        """Set the file's time to now; raises `ClaimLost` if it is no longer ours."""
        if read_owner(self.path) != self.owner:
            raise ClaimLost
        os.utime(self.path)

    def release(self) -> None:
        """Remove the file, unless it is no longer ours."""
        if read_owner(self.path) == self.owner:
            self.path.unlink(missing_ok=True)


def lock_path(folder: Path) -> Path:
    """The lock file of a cell: next to its folder, which may be moved."""
    return folder.with_name(f"{folder.name}.lock")


def take(folder: Path) -> Claim | None:
    """Claim the cell of a folder; None if another process works on it."""
    return _claim(lock_path(folder))


def _claim(path: Path) -> Claim | None:
    with _own_file(path) as (file, owner):
        try:
            os.link(file, path)
            return Claim(path, owner)
        except FileExistsError:
            other = read_owner(path)
        if other is None or _is_alive(path, other, file.stat().st_mtime):
            return None
        # Of several processes that find the same dead claim one may replace it: the others would replace that one's.
        takeover = _claim(path.with_name(f".{other.token}.lock"))
        if takeover is None:
            return None
        try:
            if read_owner(path) != other:
                return None
            file.replace(path)
            return Claim(path, owner)
        finally:
            takeover.release()


def living_owner(folder: Path) -> Owner | None:
    """The process that works on the cell of a folder; None if there is none, or it is dead."""
    path = lock_path(folder)
    owner = read_owner(path)
    if owner is None:
        return None
    with _own_file(path) as (file, _):
        return owner if _is_alive(path, owner, file.stat().st_mtime) else None


def read_owner(path: Path) -> Owner | None:
    """The owner that a lock file names; None if there is no file."""
    try:
        return Owner(**json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None


@contextmanager
def _own_file(path: Path) -> Iterator[tuple[Path, Owner]]:
    """A complete lock file of this process under another name; its time is the file system's now."""
    job = "_".join(filter(None, (os.environ.get(f"SLURM_{name}") for name in ("JOB_ID", "ARRAY_TASK_ID"))))
    owner = Owner(host=platform.node(), pid=os.getpid(), job=job, token=uuid.uuid4().hex)
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(f".{path.name}.{owner.token}")
    file.write_bytes(to_json(asdict(owner)))
    try:
        yield file, owner
    finally:
        file.unlink(missing_ok=True)


def _is_alive(path: Path, owner: Owner, now: float) -> bool:
    if owner.host == platform.node() and not Path(f"/proc/{owner.pid}").exists():
        return False
    try:
        return now - path.stat().st_mtime < DEAD_SECONDS
    except FileNotFoundError:
        return False

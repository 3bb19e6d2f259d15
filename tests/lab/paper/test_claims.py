import json
import os
import platform
import subprocess
import sys
from multiprocessing.synchronize import Barrier
from pathlib import Path

import pytest

from apo_lab.paper.claims import DEAD_SECONDS, ClaimLost, living_owner, lock_path, read_owner, take
from processes import CONTEXT

RACERS = 6


@pytest.fixture
def cell(tmp_path) -> Path:
    return tmp_path / "train" / "seed_1"


def write_lock(cell: Path, *, host: str, pid: int, age: float = 0.0) -> None:
    path = lock_path(cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"host": host, "pid": pid, "job": "", "token": f"of_{cell.name}"}))
    seconds = path.stat().st_mtime - age
    os.utime(path, (seconds, seconds))


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_cell_is_claimed_once_until_it_is_released(cell):
    claim = take(cell)
    assert claim is not None
    assert take(cell) is None
    owner = living_owner(cell)
    assert owner is not None
    assert (owner.host, owner.pid) == (platform.node(), os.getpid())
    claim.release()
    assert living_owner(cell) is None
    assert take(cell) is not None
    assert [path.name for path in cell.parent.iterdir()] == ["seed_1.lock"]


def test_the_claim_of_a_process_of_this_machine_that_is_gone_is_dead_at_once(cell):
    write_lock(cell, host=platform.node(), pid=dead_pid())
    assert living_owner(cell) is None
    assert take(cell) is not None


@pytest.mark.parametrize(("age", "is_free"), [(0.0, False), (DEAD_SECONDS - 60, False), (DEAD_SECONDS + 60, True)])
def test_a_claim_of_another_machine_is_dead_when_it_was_not_renewed(cell, age, is_free):
    write_lock(cell, host="elsewhere", pid=dead_pid(), age=age)
    assert (take(cell) is not None) == is_free


def test_renewing_sets_the_time_and_a_lost_claim_is_neither_renewed_nor_removed(cell):
    claim = take(cell)
    assert claim is not None
    os.utime(lock_path(cell), (0, 0))
    claim.renew()
    assert lock_path(cell).stat().st_mtime > 0
    write_lock(cell, host="elsewhere", pid=1)
    with pytest.raises(ClaimLost):
        claim.renew()
    claim.release()
    owner = read_owner(lock_path(cell))
    assert owner is not None
    assert owner.host == "elsewhere"


def race(folders: list[Path], begin: Barrier, end: Barrier, won: Path) -> None:
    begin.wait()
    try:
        for folder in folders:
            if take(folder) is not None:
                (won / f"{folder.name} {os.getpid()}").touch()
    finally:
        # Nobody ends before all have tried: the claim of a process that is gone is dead.
        end.wait()


@pytest.mark.slow
@pytest.mark.parametrize("has_dead_claims", [False, True])
def test_each_of_many_cells_goes_to_one_of_several_processes(cell, tmp_path, has_dead_claims):
    folders, won = [cell.with_name(f"cell_{number}") for number in range(300)], tmp_path / "won"
    won.mkdir()
    if has_dead_claims:
        pid = dead_pid()
        for folder in folders:
            write_lock(folder, host=platform.node(), pid=pid)
    begin, end = CONTEXT.Barrier(RACERS), CONTEXT.Barrier(RACERS)
    processes = [CONTEXT.Process(target=race, args=(folders, begin, end, won)) for _ in range(RACERS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    winners = sorted(path.name.split() for path in won.iterdir())
    owners = [(folder.name, read_owner(lock_path(folder))) for folder in folders]
    assert winners == sorted([name, str(owner.pid)] for name, owner in owners if owner is not None)
    assert len(winners) == len(folders)


def test_slurm_names_the_job_and_the_task_of_an_array(cell, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    claim = take(cell)
    assert claim is not None
    assert str(claim.owner) == f"process {os.getpid()} on {platform.node()}, job 17_3"

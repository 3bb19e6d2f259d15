"""Real processes, really hanging, really killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from math_answers import pool as pool_module
from math_answers.pool import WorkerPool, WorkersFailedError

HALF = (r"\frac{1}{2}", "0.5")
WRONG = (r"\frac{1}{2}", "0.6")
HANGING, BUSY, LARGE = ("3", "hang"), ("3", "a tenth of a second"), ("3", "3.5 GiB")
START_WORKER = """
import math, sys, time
sys.path.insert(0, sys.argv[1])
import math_answers
del sys.path[0]
judge = math_answers.judge

def costly(gold, answer):
    if answer == "hang":
        math.comb(30_000_000, 15_000_000)  # one long call into C, which no signal handler interrupts
    elif answer == "a tenth of a second":
        end = time.process_time() + 0.1
        while time.process_time() < end:
            pass
    elif answer == "3.5 GiB":
        bytearray(3_500 * 2**20)
    return judge(gold, answer)

math_answers.judge = costly
from math_answers.worker import main
main(int(sys.argv[2]))
"""
"""As the pool starts a worker, but some answers cost what no real one may."""


@pytest.fixture
def costly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "_START_WORKER", START_WORKER)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    pool = WorkerPool(num_workers=2, timeout_s=600.0, memory_limit_bytes=2**30)
    yield pool
    pool.close()


def pids_of(pool: WorkerPool) -> list[int]:
    return [worker.process.pid for worker in pool._workers]


def child_of(pid: int, *, other_than: int = 0) -> int:
    """The child of a worker, once it has one."""
    while not (found := Path(f"/proc/{pid}/task/{pid}/children").read_text()) or int(found) == other_than:
        time.sleep(0.01)
    return int(found)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")")[-1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(pids: list[int]) -> None:
    while any(map(is_running, pids)):
        time.sleep(0.05)


@pytest.mark.usefixtures("costly")
def test_hanging_answers_time_out_alone_and_the_order_is_kept(pool: WorkerPool):
    pool.timeout_s = 1.5  # of which the other answers take 3 ms
    pairs = [HALF, HANGING, WRONG, HANGING, HALF, WRONG]
    assert pool.judge(pairs) == ["correct", "timeout", "incorrect", "timeout", "correct", "incorrect"]
    assert len(pids_of(pool)) <= 2


@pytest.mark.usefixtures("costly")
def test_the_time_an_answer_waits_for_a_worker_is_not_held_against_it():
    pool = WorkerPool(num_workers=1, timeout_s=1.5, memory_limit_bytes=2**30)
    # The last answer waits for 3 s behind the others, twice its own deadline.
    assert pool.judge([HANGING, HANGING, HALF]) == ["timeout", "timeout", "correct"]
    assert pool.num_started == 1
    pool.close()


def test_a_reply_that_came_while_the_parent_was_stopped_counts(monkeypatch):
    """As after Ctrl-Z and fg: the wait is interrupted, and when it goes on the time is up and the reply is there."""
    pool = WorkerPool(num_workers=1, timeout_s=20.0, memory_limit_bytes=2**30)
    assert pool.judge([HALF]) == ["correct"]
    [worker] = pids_of(pool)
    judge = child_of(worker)
    monkeypatch.setattr(pool_module, "_GRACE_S", 0.5 - pool.timeout_s)

    def stop(*_: object) -> None:
        os.kill(judge, signal.SIGCONT)
        time.sleep(2.0)

    before = signal.signal(signal.SIGALRM, stop)
    try:
        os.kill(judge, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        assert pool.judge([WRONG]) == ["incorrect"]
    finally:
        signal.signal(signal.SIGALRM, before)
        pool.close()


@pytest.mark.usefixtures("costly")
def test_the_time_in_which_the_machine_runs_something_else_is_not_held_against_an_answer():
    pool = WorkerPool(num_workers=1, timeout_s=1.0, memory_limit_bytes=2**30)
    assert pool.judge([HALF]) == ["correct"]
    judge, is_done = child_of(pids_of(pool)[0]), threading.Event()

    def leave_it_a_thirtieth() -> None:
        while not is_done.is_set():
            os.kill(judge, signal.SIGSTOP)
            time.sleep(0.29)
            os.kill(judge, signal.SIGCONT)
            time.sleep(0.01)

    busy_machine = threading.Thread(target=leave_it_a_thirtieth)
    busy_machine.start()
    try:
        # So 3 s in all.
        assert pool.judge([BUSY]) == ["unparsed"]
        assert child_of(pids_of(pool)[0]) == judge
    finally:
        is_done.set()
        busy_machine.join()
        pool.close()


def test_a_judge_that_never_runs_is_a_timeout_and_is_replaced(monkeypatch):
    pool = WorkerPool(num_workers=1, timeout_s=20.0, memory_limit_bytes=2**30)
    assert pool.judge([HALF]) == ["correct"]
    os.kill(child_of(pids_of(pool)[0]), signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(pool_module, "_GRACE_S", 0.5 - pool.timeout_s)
        assert pool.judge([WRONG]) == ["timeout"]
    assert pool.judge([WRONG, HALF]) == ["incorrect", "correct"]
    assert pool.num_started == 2
    pool.close()


@pytest.mark.usefixtures("costly")
@pytest.mark.parametrize(("times", "status"), [(1, "timeout"), (2, "error")])
@pytest.mark.parametrize("is_child", [False, True])
def test_an_answer_whose_process_is_killed_is_judged_again_once(pool: WorkerPool, is_child, times, status):
    pool.judge([HALF, WRONG])
    assert len(pids_of(pool)) == 2

    def is_new(worker, killed: set[int]) -> bool:
        # A killed worker stays in the pool until it is noticed, and may be gone from /proc at any time.
        return worker.process.pid not in killed and child_of(worker.process.pid) not in killed

    def kill_the_hanging_one() -> None:
        killed: set[int] = set()
        for _ in range(times):
            while not (hanging := [w.process.pid for w in pool._workers if w.task == 1 and is_new(w, killed)]):
                time.sleep(0.01)
            child = child_of(hanging[0])
            while int(Path(f"/proc/{child}/stat").read_text().rsplit(")")[-1].split()[11]) < 5:
                time.sleep(0.01)  # until it computes: killed before it has read the answer, it costs none
            pool.timeout_s = 1.5 if times == 1 else pool.timeout_s
            killed.add(child if is_child else hanging[0])
            os.kill(child if is_child else hanging[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_the_hanging_one)
    killer.start()
    assert pool.judge([HALF, HANGING, WRONG, HALF]) == ["correct", status, "incorrect", "correct"]
    killer.join()


def test_ctrl_c_in_the_terminal_does_not_reach_a_worker_that_starts(pool: WorkerPool):
    pool.judge([HALF])
    assert os.getpgid(pids_of(pool)[0]) != os.getpgid(0)


def test_a_worker_that_dies_between_two_batches_is_replaced_unnoticed(pool: WorkerPool):
    pool.judge([HALF, WRONG])
    for pid in pids_of(pool):
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
    assert pool.judge([HALF, WRONG, HALF]) == ["correct", "incorrect", "correct"]


def test_a_child_that_dies_between_two_batches_is_replaced_and_does_not_answer_for_the_next(pool: WorkerPool):
    pool.judge([HALF, WRONG])
    for pid in pids_of(pool):
        child = child_of(pid)
        os.kill(child, signal.SIGKILL)
        child_of(pid, other_than=child)
    assert pool.judge([HALF, WRONG, HALF]) == ["correct", "incorrect", "correct"]
    assert pool.num_started == 2


@pytest.mark.usefixtures("costly")
def test_an_answer_that_outgrows_the_memory_limit_takes_no_other_with_it():
    pool = WorkerPool(num_workers=1, timeout_s=600.0, memory_limit_bytes=2**28)
    assert pool.judge([HALF, LARGE, HALF]) == ["correct", "timeout", "correct"]
    assert pool.num_started == 1
    pool.close()


def test_text_of_any_kind_reaches_the_worker_as_it_is(pool: WorkerPool):
    odd = ["\x00", "a\nb", "\u2028", "\ud800", '"', "\\", "(" * 300 + ")" * 300, "{" * 2000 + "}" * 2000, "\x01" * 4096]
    statuses = pool.judge([(text, "0.5") for text in odd] + [HALF])
    assert statuses[-1] == "correct"
    assert "correct" not in statuses[:-1]


def test_workers_start_when_needed_and_no_more_than_needed(pool: WorkerPool):
    assert pool.judge([]) == []
    assert pool.num_started == 0
    pool.judge([HALF])
    assert pool.num_started == 1
    pool.judge([HALF])
    assert pool.num_started == 1


def test_nothing_is_left_after_close_and_closing_twice_is_fine(pool: WorkerPool):
    pool.judge([HALF, HALF])
    pids = pids_of(pool)
    children = [child_of(pid) for pid in pids]
    pool.close()
    pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    wait_until_gone(children)
    assert pool.judge([HALF]) == ["correct"]


def test_several_threads_can_judge_at_once(pool: WorkerPool):
    answers: dict[int, list[str]] = {}
    threads = [
        threading.Thread(target=lambda n=n: answers.update({n: list(pool.judge([HALF, WRONG] * (n + 1)))}))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: ["correct", "incorrect"] * (n + 1) for n in range(3)}


@pytest.mark.usefixtures("costly")
def test_an_interrupted_batch_does_not_answer_for_the_next(pool: WorkerPool):
    pool.judge([HALF])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - a signal before the block would be raised outside of it
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            pool.judge([HANGING])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert pool.judge([WRONG, HALF]) == ["incorrect", "correct"]


def test_workers_that_cannot_start_are_reported_and_not_tried_for_ever(pool: WorkerPool, monkeypatch, tmp_path: Path):
    package = tmp_path / "math_answers"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit(7)\n")
    monkeypatch.setattr(pool_module, "__file__", str(package / "pool.py"))
    with pytest.raises(WorkersFailedError, match=r"exit status 7"):
        pool.judge([HALF, HALF])
    assert pids_of(pool) == []
    assert pool.num_started <= 5


PARENT = f"""
import os, signal, threading, time
from math_answers import pool as pool_module

pool_module._START_WORKER = {START_WORKER!r}
pool = pool_module.WorkerPool(num_workers=2, timeout_s=1.0, memory_limit_bytes=2**30)
assert pool.judge([("1/2", "0.5"), ("1/2", "0.5")]) == ["correct", "correct"]
for pid in [worker.process.pid for worker in pool._workers]:
    while not (child := open(f"/proc/{{pid}}/task/{{pid}}/children").read()):
        time.sleep(0.01)
    print(pid, child, flush=True)
pool.timeout_s = 3.0
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
pool.judge([{HANGING!r}])
"""


def test_workers_idle_or_hanging_do_not_outlive_a_parent_that_is_killed():
    # From stdin, where multiprocessing's spawn would fail: there is no __main__ file to import again.
    parent = subprocess.run([sys.executable, "-"], input=PARENT, capture_output=True, text=True)
    assert parent.returncode == -signal.SIGKILL, parent.stderr
    pids = [int(pid) for pid in parent.stdout.split()]
    assert len(pids) == 4
    wait_until_gone(pids)


def test_a_worker_loads_neither_torch_nor_the_framework():
    code = (
        "import sys, math_answers.worker;"
        "print({'torch', 'vllm', 'sympy', 'jaxtyping', 'apo_lightning', 'apo_lab'} & set(sys.modules))"
    )
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert result.stdout.strip() == "set()", result.stderr

"""Parent side of the verifier's workers: sends each worker one answer at a time, with its deadline."""

import contextlib
import json
import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast

Status = Literal["correct", "incorrect", "unparsed", "timeout", "error"]
OUT_OF_MEMORY = 3
"""Exit status of a worker's child whose answer needed more memory than it may have."""

_START_TIMEOUT_S = 120.0
"""Time for a worker to start: a cold network file system takes a minute."""
_MAX_FAILED_STARTS = 3
_START_WORKER = (
    "import sys; sys.path.insert(0, sys.argv[1]); import math_answers; del sys.path[0]; "
    "from math_answers.worker import main; main(int(sys.argv[2]))"
)
"""Imports the same package as the parent; its folder is first on sys.path for that import only."""
_GRACE_S = 60.0
"""A worker ends an answer at its deadline, in CPU time; one silent for so much longer in wall time is replaced [s]."""
_ENDED = "ended"
"""First word of a reply about an answer that ended its process; the exit status follows."""

_logger = logging.getLogger(__name__)


class WorkersFailedError(RuntimeError):
    """Workers cannot be started at all."""


class _Worker:
    """One child process, which is starting, idle, or busy with one answer."""

    def __init__(self, memory_limit_bytes: int):
        # Not forked: this process has the threads and CUDA contexts of torch and vLLM. Not multiprocessing's spawn: it
        # imports the parent's __main__. -P keeps the working directory off sys.path, where a user's sympy.py would
        # hide the library.
        package = Path(__file__).resolve().parents[0]
        command = [sys.executable, "-P", "-c", _START_WORKER, str(package.parent), str(memory_limit_bytes)]
        # A group of its own: Ctrl-C in a terminal, which asks the parent to save and stop, would end a starting worker.
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._requests, self._replies = self.process.stdin, self.process.stdout
        self.is_ready = False
        self.task: int | None = None
        self.deadline = time.monotonic() + _START_TIMEOUT_S

    def fileno(self) -> int:
        """The reply pipe, for a selector."""
        return self._replies.fileno()

    def send(self, task: int, gold: str, answer: str, timeout_s: float) -> None:
        """Send an answer with its deadline. Raises BrokenPipeError if the worker has died."""
        if self.process.poll() is not None:
            raise BrokenPipeError  # its child may hold the pipe open for another moment
        line = json.dumps([gold, answer, timeout_s], ensure_ascii=False) + "\n"
        # An idle worker has emptied its pipe, and the line is shorter than the pipe: this cannot block.
        self._requests.write(line.encode("utf-8", "surrogatepass"))
        self._requests.flush()
        self.task = task
        self.deadline = time.monotonic() + timeout_s + _GRACE_S

    def receive(self) -> bytes:
        """One reply; empty if the worker has died."""
        return os.read(self.fileno(), 64)  # a reply is shorter than PIPE_BUF, so it arrives whole

    def end(self) -> None:
        """Kill the process and close its pipes."""
        self.process.kill()
        self.process.wait()
        with contextlib.suppress(BrokenPipeError):  # an unsent rest of a line
            self._requests.close()
        self._replies.close()


class WorkerPool:
    """Judges pairs of gold and answer in child processes, which start on first use.

    A verdict depends on gold and answer alone: work is counted before it is done (`values`), and the deadline, in CPU
    time of the process that judges, is the last net below that.
    """

    def __init__(self, num_workers: int, timeout_s: float, memory_limit_bytes: int):
        self.num_workers = num_workers
        self.timeout_s = timeout_s
        self.memory_limit_bytes = memory_limit_bytes
        self.num_started = 0
        """Number of workers started so far, replacements included."""
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def judge(self, pairs: Sequence[tuple[str, str]]) -> list[Status]:
        """The status of each (gold, answer), in order.

        Raises:
            WorkersFailedError: workers cannot be started at all.
        """
        with self._lock:
            try:
                return self._judge(pairs)
            except BaseException:
                # A worker that is still busy would reply to the next call with this call's verdict.
                self._end_all()
                raise

    def close(self) -> None:
        """End all workers; the next `judge` starts new ones."""
        with self._lock:
            self._end_all()

    def _judge(self, pairs: Sequence[tuple[str, str]]) -> list[Status]:
        statuses: dict[int, Status] = {}
        waiting, again = deque(range(len(pairs))), set[int]()
        num_failed_starts = 0

        def conclude(worker: _Worker, reply: str) -> None:
            """Enter a status; once in the call an answer whose process was ended, perhaps from outside, waits again."""
            assert worker.task is not None
            task, worker.task = worker.task, None
            status = self._status(reply, pairs[task])
            if status == "error" and reply.startswith(_ENDED) and task not in again:
                again.add(task)
                waiting.append(task)
            else:
                statuses[task] = status

        while len(statuses) < len(pairs):
            self._hand_out(waiting, pairs)
            for worker, reply in self._next_events():
                if reply == b"ready\n":
                    worker.is_ready, num_failed_starts = True, 0
                elif reply:
                    conclude(worker, reply.decode())
                else:
                    self._discard(worker)
                    if worker.task is not None:
                        code = -signal.SIGPROF if reply is None else worker.process.returncode
                        conclude(worker, f"{_ENDED} {code}")
                    elif not worker.is_ready:
                        num_failed_starts += 1
                        self._check_starts(worker, num_failed_starts)
        return [statuses[index] for index in range(len(pairs))]

    def _status(self, reply: str, pair: tuple[str, str]) -> Status:
        """The status that a reply says, or that follows from how the process of the answer ended."""
        status, _, code = reply.strip().partition(" ")
        if status == _ENDED:
            # A policy can ask for all memory as easily as for all time, and an `error` could end its run.
            status = "timeout" if int(code) in (-signal.SIGPROF, OUT_OF_MEMORY) else "error"
            message = "verifier ended (%s, exit status %s) on the gold %.200r and the answer %.200r"
            _logger.warning(message, status, code, *pair)
        return cast(Status, status)

    def _hand_out(self, waiting: deque[int], pairs: Sequence[tuple[str, str]]) -> None:
        """Give every idle worker an answer, and start enough workers for the rest."""
        for worker in [worker for worker in self._workers if worker.is_ready and worker.task is None]:
            if not waiting:
                return
            try:
                worker.send(waiting[0], *pairs[waiting[0]], self.timeout_s)
                waiting.popleft()
            except BrokenPipeError:  # it died while idle, so this answer is not the cause
                self._discard(worker)
        num_starting = sum(not worker.is_ready for worker in self._workers)
        for _ in range(min(len(waiting) - num_starting, self.num_workers - len(self._workers))):
            self._workers.append(_Worker(self.memory_limit_bytes))
            self.num_started += 1

    def _next_events(self) -> list[tuple[_Worker, bytes | None]]:
        """Wait for a reply or a deadline. An empty reply means that the worker died, None that its time is up."""
        active = [worker for worker in self._workers if worker.task is not None or not worker.is_ready]
        with selectors.DefaultSelector() as selector:
            for worker in active:
                selector.register(worker, selectors.EVENT_READ, worker)
            next_deadline = min(worker.deadline for worker in active)
            # A wait that a signal interrupts, such as the one after Ctrl-Z, ends without a look if the time is up.
            ready = selector.select(max(0.0, next_deadline - time.monotonic())) or selector.select(0)
        events: list[tuple[_Worker, bytes | None]] = [(key.data, key.data.receive()) for key, _ in ready]
        heard = {id(worker) for worker, _ in events}
        now = time.monotonic()
        return events + [(worker, None) for worker in active if worker.deadline <= now and id(worker) not in heard]

    def _discard(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        worker.end()

    def _end_all(self) -> None:
        while self._workers:
            self._workers.pop().end()

    def _check_starts(self, worker: _Worker, num_failed_starts: int) -> None:
        if num_failed_starts >= _MAX_FAILED_STARTS:
            raise WorkersFailedError(
                f"the last {num_failed_starts} verifier workers ended before they could start (exit status "
                f"{worker.process.returncode}): see their output above, and run "
                f'`{sys.executable} -c "import math_answers"`'
            )

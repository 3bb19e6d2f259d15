"""Main function of a worker process that judges answers; started by `math_answers.pool`, never imported there.

Protocol: one line in, `[gold, answer, timeout_s]` as JSON; one line out, the status. The worker first writes `ready`.

It has loaded the libraries, and forks a child that judges one answer after the other. A child that dies, because an
answer took too much time or memory, is replaced in milliseconds; the reply is then `ended` and its exit status.
"""

import contextlib
import ctypes
import json
import mmap
import os
import resource
import signal
import sys

from math_answers import judge
from math_answers.pool import OUT_OF_MEMORY

_PR_SET_PDEATHSIG = 1


def main(memory_limit_bytes: int) -> None:
    """Keep a child that answers requests, until the pipe closes.

    Args:
        memory_limit_bytes: limit of the address space.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends workers
    judge("x", r"\frac{2x}{2}")  # makes tables, so that the first answer's deadline does not include it
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        memory_limit_bytes = min(memory_limit_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Output of libraries must not reach the reply pipe.
    requests, replies = os.dup(0), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    is_busy = mmap.mmap(-1, 1)  # shared with the child: a death between two answers must not answer the next one
    os.write(replies, b"ready\n")
    with contextlib.suppress(BrokenPipeError):  # the parent has died
        while (status := _lifetime(requests, replies, is_busy)) != 0:
            if is_busy[0]:
                os.write(replies, f"ended {status}\n".encode())


def _lifetime(requests: int, replies: int, is_busy: mmap.mmap) -> int:
    """Fork a child and wait for its end: its exit status, or minus its signal."""
    parent, child = os.getpid(), os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() == parent:
        is_busy[0] = 0
        _serve(requests, replies, is_busy)
    os._exit(0)


def _serve(requests: int, replies: int, is_busy: mmap.mmap) -> None:
    for request in os.fdopen(requests, "rb"):
        gold, answer, timeout_s = json.loads(request.decode("utf-8", "surrogatepass"))
        is_busy[0] = 1
        # Without a handler the signal ends the process, even inside C code. CPU time: in wall time, a busy machine
        # would refuse ordinary answers.
        signal.setitimer(signal.ITIMER_PROF, timeout_s)
        try:
            status = judge(gold, answer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # after a failed allocation this process must not judge another answer
        except Exception:
            status = "error"
        signal.setitimer(signal.ITIMER_PROF, 0)
        is_busy[0] = 0
        os.write(replies, f"{status}\n".encode())

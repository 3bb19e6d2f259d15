"""A child process that judges answers. Started by `rewards.worker_pool`, and never imported there.

Protocol, one line each way: in `[gold, answer]` as JSON, out a verdict's status; once, at the start, out `ready`.
"""

import json
import logging
import os
import resource
import signal

from apo_lightning.rewards.math_equivalence.judge import judge


def main(timeout_s: float, memory_limit_bytes: int) -> None:
    """Answer requests until the pipe closes.

    Args:
        timeout_s: a request that takes longer ends this process [s]. The parent kills earlier; this is for the
            worker of a parent that is gone, which would burn a core until the machine is restarted.
        memory_limit_bytes: address space.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole terminal; the parent ends its workers
    logging.disable()  # math-verify warns that its own time-outs are off, once per worker
    judge("1", r"\frac{2}{2}")  # loads the grammar, so that the first answer's deadline does not pay for it
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        memory_limit_bytes = min(memory_limit_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Whatever sympy prints must not reach the pipe of the verdicts.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.write(replies, b"ready\n")
    for request in requests:
        gold, answer = json.loads(request.decode("utf-8", "surrogatepass"))
        # Without a handler the alarm ends the process, from C code too.
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            status = judge(gold, answer)
        except MemoryError:
            raise  # what is left of this process is not to be trusted with the next answer
        except Exception:
            status = "error"
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, f"{status}\n".encode())

"""Main function of a worker process that judges answers; started by `rewards.worker_pool`, never imported there.

Protocol: one line in, `[gold, answer]` as JSON; one line out, the status. The worker first writes the line `ready`.
"""

import json
import logging
import os
import resource
import signal

from apo_lightning.rewards.math_equivalence import OUT_OF_MEMORY
from apo_lightning.rewards.math_equivalence.judge import judge


def main(timeout_s: float, memory_limit_bytes: int) -> None:
    """Answer requests until the pipe closes.

    Args:
        timeout_s: a request that takes longer ends this process [s]. The parent kills earlier; this limit is for a
            worker whose parent has died, which would otherwise use a core forever.
        memory_limit_bytes: limit of the address space.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent ends workers
    logging.disable()  # math-verify warns once per worker that its own time-outs are off
    judge("1", r"\frac{2}{2}")  # loads the grammar, so that the first answer's deadline does not include it
    _, hard_limit = resource.getrlimit(resource.RLIMIT_AS)
    if hard_limit != resource.RLIM_INFINITY:
        memory_limit_bytes = min(memory_limit_bytes, hard_limit)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit_bytes, hard_limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Output of sympy must not reach the reply pipe.
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.write(replies, b"ready\n")
    for request in requests:
        gold, answer = json.loads(request.decode("utf-8", "surrogatepass"))
        # Without a handler the alarm ends the process, even inside C code.
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            status = judge(gold, answer)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)  # after a failed allocation this process must not judge another answer
        except Exception:
            status = "error"
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.write(replies, f"{status}\n".encode())

"""A callback and rewards that end the process, or disturb it."""

import os
import signal
import subprocess
import sys

from apo_lightning.callbacks import StepCallback


class Ends(StepCallback):
    """Calls sys.exit."""

    def on_step(self, step):
        sys.exit(0)


class Fails(StepCallback):
    def on_step(self, step):
        return 1 / 0


def ends(completions, **kwargs):
    if len(completions) == 3:  # the trial before the run
        return [0.0] * 3
    sys.exit(0)


def breaks(completions, **kwargs):
    if len(completions) == 3:
        return [0.0] * 3
    raise MemoryError


def breaks_at_once(completions, **kwargs):
    raise MemoryError


def huge(completions, **kwargs):
    many = len(completions) > 3  # not in the trial, which would refuse it
    return [1e300 * (index % 2) if many else 0.0 for index in range(len(completions))]


CALLS = []


def interrupted_with_its_children(completions, **kwargs):
    """Even completions are right, say children that a signal of the group ends: in the second call there is one."""
    if len(completions) != 3:  # of the trial before the run
        CALLS.append(len(completions))
    signals = iter([os.environ.pop("SIGNAL", None)] if len(CALLS) == 2 else [])
    statuses = []
    for index in range(len(completions)):
        child = subprocess.Popen(["sleep", "0.01"])
        if (name := next(signals, None)) is not None:
            child.send_signal(signal.Signals[name])
            os.kill(os.getpid(), signal.Signals[name])
        statuses.append(child.wait() == 0 and index % 2 == 0)
    return [float(status) for status in statuses]

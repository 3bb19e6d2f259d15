"""For runs that are stopped: callbacks and rewards that press Ctrl-C or end the process, and one that has a state."""

import os
import signal
import subprocess
import sys

from apo_lightning.callbacks import StepCallback


class Interrupt(StepCallback):
    """Presses Ctrl-C at the end of step 2, once or twice."""

    def __init__(self, times):
        self.times = times

    def on_step(self, step):
        if step.step == 2:
            for _ in range(self.times):
                os.kill(os.getpid(), signal.SIGINT)


class Counter(StepCallback):
    """Logs how many completions of the run were correct."""

    def __init__(self):
        self.total = 0

    def on_step(self, step):
        self.total += int(step.rollouts.is_correct.sum())
        return {"mine/correct": float(self.total)}

    def state_dict(self):
        return {"total": self.total}

    def load_state_dict(self, state_dict):
        self.total = state_dict["total"]


class Ends(StepCallback):
    """Calls sys.exit."""

    def on_step(self, step):
        sys.exit(0)


def ends(completions, **kwargs):
    sys.exit(0)


def breaks(completions, **kwargs):
    raise MemoryError


def ends_at_once(completions, **kwargs):
    os._exit(0)


def huge(completions, **kwargs):
    return [1e300 * (index % 2) for index in range(len(completions))]


def interrupted_with_its_children(completions, **kwargs):
    """Even completions are right, say children that a signal of the group ends: in the first call there is one."""
    signals = iter([os.environ.pop("SIGNAL", None)])
    statuses = []
    for index in range(len(completions)):
        child = subprocess.Popen(["sleep", "0.01"])
        if (name := next(signals, None)) is not None:
            child.send_signal(signal.Signals[name])
            os.kill(os.getpid(), signal.Signals[name])
        statuses.append(child.wait() == 0 and index % 2 == 0)
    return [float(status) for status in statuses]

"""Callbacks for runs that are stopped: one presses Ctrl-C, one has a state."""

import os
import signal

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

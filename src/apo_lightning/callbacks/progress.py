"""Progress of a training run: one aligned line per step and per held-out set."""

import math
import time
from collections.abc import Iterable

import lightning.pytorch as pl

from apo_lightning.callbacks.step_callback import StepCallback
from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration, number
from apo_lightning.types import StepOutput, ValidationOutput

STEPS_PER_HEADER = 20


class ProgressDisplay(StepCallback):
    """Prints one line per step, 80 columns wide, and one per held-out set; the same on a terminal and in a file."""

    def __init__(self) -> None:
        self._first_step = 0
        self._started = time.monotonic()
        self._num_lines = 0

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start the clock of the remaining time at the current step, which is above 0 after a resume."""
        self._first_step = trainer.global_step
        self._started = time.monotonic()

    def on_step(self, step: StepOutput) -> None:
        """Print a finished training step."""
        seconds_per_step = (time.monotonic() - self._started) / (step.step - self._first_step)
        line = cells(step, seconds_left=seconds_per_step * (step.max_steps - step.step))
        if self._num_lines % STEPS_PER_HEADER == 0:
            say(aligned(line))
        say(aligned(line.values()))
        self._num_lines += 1

    def on_validated(self, output: ValidationOutput) -> None:
        """Print the result of a held-out set."""
        say(held_out_line(output))


def cells(step: StepOutput, seconds_left: float) -> dict[str, str]:
    """The line of a step in plain ASCII, by column name; "-" for what was not logged."""
    pass_at_g = f"pass@{step.rollouts.group_size}"
    columns = {
        "reward": "train/reward",
        "pass@1": "train/pass@1",
        pass_at_g: f"train/{pass_at_g}",
        "entropy": "train/entropy",
        "max-prob": "train/max_prob",
    }
    return {
        "step": f"{step.step}/{step.max_steps}",
        **{label: number(step.metrics.get(key, math.nan)) for label, key in columns.items()},
        "tokens/s": number(step.metrics.get("perf/tokens_per_second", math.nan), 0),
        "s/step": number(step.timings.get("step", math.nan), 1),
        "left": duration(seconds_left),
    }


def aligned(line: Iterable[str]) -> str:
    """A line of at most nine cells in 80 columns.

    Example:
        >>> aligned(["1/30", "0.250", "1.402"])
        '     1/30   0.250    1.402'
    """
    step, reward, *others = line
    return f"{step:>9}{reward:>8}" + "".join(f"{cell:>9}" for cell in others)


def held_out_line(output: ValidationOutput) -> str:
    """`held-out arithmetic at step 10: pass@1 0.412, pass@4 0.688 (256 problems)`.

    Where the verifier failed, `(256 problems, 2 completions could not be judged)`.
    """
    prefix = f"val/{output.name}/"
    scores = [
        f"{key.removeprefix(prefix)} {number(value)}"
        for key, value in output.metrics.items()
        if key.startswith(prefix + "pass@")
    ]
    num_errors = output.rollouts.verdict_counts["error"]
    errors = f", {num_errors} completions could not be judged" if num_errors else ""
    problems = f"({len(output.rollouts.prompts)} problems{errors})"
    return f"held-out {output.name} at step {output.step}: {', '.join(scores)} {problems}"

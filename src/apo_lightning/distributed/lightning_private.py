"""What of Lightning is not public and is used all the same: all of it, and held by `tests/test_private_doors.py`."""

import subprocess
from dataclasses import fields
from typing import Any

import lightning.pytorch as pl
import torch

STEPPED = "_batches_that_stepped"
"""The step that loggers are told, in the state of Lightning's loop; a new trainer begins at 0."""


def forget_logged(trainer: pl.Trainer) -> None:
    """Forget what was logged so far, which Lightning would log again, unchanged, at every step until the epoch's end.

    There is no public way: `log` can be told to keep a number for an epoch, not to drop it after its step.
    """
    assert trainer._results is not None
    trainer._results.reset()


def set_finished_steps(trainer: pl.Trainer, steps: int) -> None:
    """Let a new trainer count from a step on: what it compares with `max_steps` and `val_check_interval`.

    Otherwise a run that goes on would train `max_steps` more, and log them as the first ones. Lightning restores these
    counts from checkpoints of its own alone.
    """
    loop = trainer.fit_loop.epoch_loop
    for total in (loop.batch_progress.total, loop.manual_optimization.optim_step_progress.total):
        for stage in fields(total):
            setattr(total, stage.name, steps)
    state = loop.on_save_checkpoint()
    assert STEPPED in state, f"Lightning's loop has no {STEPPED}, only {', '.join(state)}"
    loop.on_load_checkpoint(state | {STEPPED: steps})


def note_device(module: pl.LightningModule, device: torch.device) -> None:
    """Let `module.device` be this device, and leave the weights where they are.

    `LightningModule.to` does both at once. Were the device not noted, the step's tensors and the engine would go to the
    CPU, where offloaded shards lie.
    """
    module._device = device
    assert module.device == device, f"Lightning's module is on {module.device} although {device} was noted"


def launched_processes(trainer: pl.Trainer) -> list[subprocess.Popen[bytes]]:
    """The very list of the processes that Lightning's launcher has started: what is taken out it no longer watches.

    Empty where another launcher has started the ranks, or where there is one rank.
    """
    launcher: Any = trainer.strategy.launcher
    return [] if launcher is None else launcher.procs

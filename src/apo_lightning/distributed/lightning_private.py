"""All uses of Lightning's private interface; `tests/test_private_doors.py` checks that it exists."""

from dataclasses import fields

import lightning.pytorch as pl

STEPPED = "_batches_that_stepped"
"""Key of the step that loggers get, in the state of Lightning's loop; it is 0 in a new trainer."""


def forget_logged(trainer: pl.Trainer) -> None:
    """Clear the logged values, which Lightning would otherwise log again at every step until the end of the epoch."""
    assert trainer._results is not None
    trainer._results.reset()


def set_finished_steps(trainer: pl.Trainer, steps: int) -> None:
    """Set the step count of a new trainer, which it compares with `max_steps` and `val_check_interval`.

    Otherwise a resumed run would train `max_steps` more steps and log them from step 0. Lightning restores these counts
    only from its own checkpoints.
    """
    loop = trainer.fit_loop.epoch_loop
    for total in (loop.batch_progress.total, loop.manual_optimization.optim_step_progress.total):
        for stage in fields(total):
            setattr(total, stage.name, steps)
    state = loop.on_save_checkpoint()
    assert STEPPED in state, f"Lightning's loop has no {STEPPED}, only {', '.join(state)}"
    loop.on_load_checkpoint(state | {STEPPED: steps})

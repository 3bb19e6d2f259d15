"""A few completions of a step, as tables of W&B and TensorBoard."""

import lightning.pytorch as pl
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger

from apo_lightning.callbacks.rollout_writer import completion_lines
from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.types import StepOutput

COLUMNS = ("prompt", "completion", "reward", "advantage", "status")
NUM_ROWS = 8


class CompletionTable(StepCallback):
    """Shows one completion of each of the first eight prompts of a step; without W&B and TensorBoard it does nothing.

    The files of `rollout_writer` have all completions.

    Args:
        every_n_steps: show the steps that this number divides.
    """

    def __init__(self, every_n_steps: int = 10) -> None:
        self.every_n_steps = check_every_n_steps("completion_table", every_n_steps)
        self._trainer: pl.Trainer | None = None

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Only the first rank shows completions, those of its own prompts."""
        self._trainer = trainer if trainer.is_global_zero else None

    def on_step(self, step: StepOutput) -> None:
        """Give the loggers the completions of this step."""
        loggers = [] if self._trainer is None else self._trainer.loggers
        lines = completion_lines(step)[:: step.rollouts.group_size][:NUM_ROWS] if loggers else []
        rows = [[line[column] for column in COLUMNS] for line in lines]
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.log_table("completions", columns=list(COLUMNS), data=rows, step=step.step)
            elif isinstance(logger, TensorBoardLogger):
                logger.experiment.add_text("completions", "\n\n".join(map(_as_text, rows)), step.step)


def _as_text(row: list[object]) -> str:
    """A row as a block of code: Markdown would interpret a completion."""
    lines = "\n".join(f"{column}: {value}" for column, value in zip(COLUMNS, row, strict=True))
    return "    " + lines.replace("\n", "\n    ")

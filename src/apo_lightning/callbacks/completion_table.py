"""A few completions of a step, for the loggers that show tables."""

import lightning.pytorch as pl

from apo_lightning.callbacks.rollout_writer import completion_lines
from apo_lightning.callbacks.run_loggers import RunLogger
from apo_lightning.callbacks.step_callback import StepCallback, check_every_n_steps
from apo_lightning.errors import ConfigError
from apo_lightning.types import StepOutput


class CompletionTable(StepCallback):
    """Shows one completion of each of the first prompts of a step in W&B and TensorBoard; without them it does nothing.

    The files of `rollout_writer` have all completions.

    Args:
        num_completions: rows of a table.
        every_n_steps: show the steps that this number divides.
    """

    def __init__(self, num_completions: int = 8, every_n_steps: int = 10) -> None:
        if num_completions < 1:
            raise ConfigError(
                f"callbacks.completion_table.num_completions is {num_completions}: give 1 or more, or "
                "~callbacks.completion_table"
            )
        self.num_completions = num_completions
        self.every_n_steps = check_every_n_steps("completion_table", every_n_steps)
        self._loggers: list[RunLogger] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Only the first rank shows completions, those of its own prompts."""
        self._loggers = [logger for logger in trainer.loggers if isinstance(logger, RunLogger)]
        self._loggers = self._loggers if trainer.is_global_zero else []

    def on_step(self, step: StepOutput) -> None:
        """Give the loggers the completions of this step."""
        if self._loggers:
            lines = completion_lines(step)[:: step.rollouts.group_size][: self.num_completions]
            rows = [line | {"correct": line["status"] == "correct"} for line in lines]
            for logger in self._loggers:
                logger.log_completions(rows, step.step)

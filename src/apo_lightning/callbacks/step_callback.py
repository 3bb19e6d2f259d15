"""The base class of diagnostics: a callback that receives finished steps and changes nothing about training."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.types import Advantages, Needs, Probe, Rollouts, StepOutput, ValidationOutput


class StepCallback(pl.Callback):
    """A Lightning callback that receives frozen `StepOutput` and `ValidationOutput` records.

    Override `on_step`, `on_validated` or both; all other Lightning hooks work too. `on_step` runs after the optimizer
    steps and the weight sync of a step. With several ranks it runs on each, with the rank's own prompts;
    `step.metrics` cover all ranks.

    Attributes:
        needs: values that the callback reads in addition to log-probs, entropy and max-prob of the updated tokens. At
            due steps the module computes them for *all* response tokens, in an extra pass without gradients if the loss
            does not need them. Without a need, values of tokens outside the update are NaN. For a reference that only
            `probe` asks for: `Needs(reference_model=True)`, without a pass over the step.
        every_n_steps: the callback is due at the steps that this number divides.

    Example:
        `callbacks: {wrong_length: {_target_: my_module.WrongLength}}` adds this diagnostic to a run.

        >>> class WrongLength(StepCallback):
        ...     '''Mean length of wrong completions [tokens].'''
        ...
        ...     every_n_steps = 2
        ...
        ...     def on_step(self, step):
        ...         wrong = ~step.rollouts.is_correct
        ...         if wrong.any():
        ...             return {"mine/wrong_tokens": step.rollouts.lengths[wrong].float().mean().item()}
        >>> WrongLength().is_due(step=3)
        False
    """

    needs: Needs = Needs()
    every_n_steps: int = 1

    def prepare(self, loss: PolicyLoss) -> None:
        """Receive the run's loss, for its settings; called once, before `needs` is read and anything is loaded."""

    def is_due(self, step: int) -> bool:
        """True at the steps that `on_step` receives."""
        return step % self.every_n_steps == 0

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe | None:
        """Tokens that the policy will score after the step's update; None: none.

        Called at due steps, after sampling and before the update, on every rank: either all return a probe or none
        does. The scores are in `StepOutput.probes` under the callback's `state_key`.
        """

    def on_step(self, step: StepOutput) -> Mapping[str, float] | None:
        """Receive a finished training step. Returned numbers are logged under their keys at this step."""

    def on_validated(self, output: ValidationOutput) -> Mapping[str, float] | None:
        """Receive a validation pass over one held-out set. Returned numbers are logged, in a separate row."""

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Pass the step to `on_step` when it is due, and log the returned numbers."""
        step: StepOutput = outputs["step_output"]
        if not self.is_due(step.step):
            return
        numbers = self.on_step(step)
        if numbers:
            pl_module.log_dict(dict(numbers), on_step=True, on_epoch=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Pass the result of each held-out set to `on_validated`, and log the returned numbers.

        `on_validation_epoch_end` would see the *previous* pass: Lightning calls callbacks before the module.
        """
        if trainer.sanity_checking:
            return
        for output in getattr(pl_module, "validation_outputs", ()):
            numbers = self.on_validated(output)
            # Lightning has already closed its own log for this pass.
            for logger in trainer.loggers if numbers else ():
                logger.log_metrics(dict(numbers or {}), step=output.step)


def check_every_n_steps(callback: str, every_n_steps: int) -> int:
    """Return `every_n_steps`, or raise `ConfigError` where it is below 1."""
    if every_n_steps < 1:
        raise ConfigError(
            f"callbacks.{callback}.every_n_steps is {every_n_steps}: give 1 or more, or ~callbacks.{callback}"
        )
    return every_n_steps

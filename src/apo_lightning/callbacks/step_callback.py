"""What every diagnostic has in common: it receives a finished step, reads everything and steers nothing."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.types import Advantages, Needs, Probe, Rollouts, StepOutput, ValidationOutput


class StepCallback(pl.Callback):
    """A Lightning callback that sees frozen `StepOutput` and `ValidationOutput` records.

    Override `on_step`, `on_validated` or both; any other Lightning hook is there too. A callback is called after the
    optimizer steps and the weight sync of a step, so nothing that it does can change the run. With several ranks it is
    called on each, with the prompts that the rank worked on; `step.metrics` are of all ranks together.

    Attributes:
        needs: what the callback reads beyond the log-probs, entropy and max-prob of the tokens that the update is run
            on; without a need, those of the other tokens are NaN, but for the few completions of `StepTokens.drawn`.
            On the steps that are due, the module computes what is needed for *all* response tokens, in a pass without
            gradients if the loss does not need it.
        probe_needs: what `probe` asks of the reference, so that the run keeps one; it costs no pass over the step.
        every_n_steps: the callback is due at the steps that this number divides.

    Example:
        A diagnostic of one's own; `callbacks: {wrong_length: {_target_: my_module.WrongLength}}` switches it on.

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
    probe_needs: Needs = Needs()
    every_n_steps: int = 1

    def prepare(self, loss: PolicyLoss) -> None:
        """Take in the run's loss; called once, before `needs` is read and before anything is loaded.

        For a diagnostic whose meaning depends on the algorithm's own settings: read them here instead of copying them.
        """

    def is_due(self, step: int) -> bool:
        """True at the steps that `on_step` sees, and for which `needs` have to be satisfied."""
        return step % self.every_n_steps == 0

    def probe(self, rollouts: Rollouts, advantages: Advantages) -> Probe | None:
        """Tokens that the policy is to score once the step's update is done; None: none.

        Asked at the steps that are due, after sampling and before the update, on every rank, for its own share: either
        all ranks give a probe or none does. The answer stands in `StepOutput.probes` under the callback's `state_key`.
        """

    def on_step(self, step: StepOutput) -> Mapping[str, float] | None:
        """Take in a finished training step. Numbers returned are logged under their keys at this step."""

    def on_validated(self, output: ValidationOutput) -> Mapping[str, float] | None:
        """Take in a validation pass over one held-out set, before, during or after training.

        Numbers returned are logged under their keys, in a row of their own.
        """

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Hand the step to `on_step` when it is due, and log what comes back."""
        step: StepOutput = outputs["step_output"]
        if not self.is_due(step.step):
            return
        numbers = self.on_step(step)
        if numbers:
            pl_module.log_dict(dict(numbers), on_step=True, on_epoch=False)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Hand each benchmark's result to `on_validated`.

        In `on_validation_epoch_end` it would be the *previous* pass: Lightning calls callbacks before the module.
        """
        if trainer.sanity_checking:
            return
        for output in getattr(pl_module, "validation_outputs", ()):
            numbers = self.on_validated(output)
            # Lightning closes its own log for the pass before it calls this.
            for logger in trainer.loggers if numbers else ():
                logger.log_metrics(dict(numbers or {}), step=output.step)


def check_every_n_steps(callback: str, every_n_steps: int) -> int:
    """`every_n_steps`, if it is a number of steps.

    Raises:
        ConfigError: it is below 1.
    """
    if every_n_steps < 1:
        raise ConfigError(
            f"callbacks.{callback}.every_n_steps is {every_n_steps}: give 1 or more, or ~callbacks.{callback}"
        )
    return every_n_steps

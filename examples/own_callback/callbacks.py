"""A callback that reads a step and logs one number."""

from apo_lightning.callbacks import StepCallback
from apo_lightning.types import StepOutput


class WrongLength(StepCallback):
    """Mean length of wrong completions [tokens]."""

    every_n_steps = 5

    def on_step(self, step: StepOutput) -> dict[str, float] | None:
        """Log `mine/wrong_tokens`; nothing if all completions are correct."""
        wrong = ~step.rollouts.is_correct
        return {"mine/wrong_tokens": step.rollouts.lengths[wrong].float().mean().item()} if wrong.any() else None

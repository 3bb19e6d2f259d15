"""The looks at held-out problems: when one is due, and what it found."""

from collections.abc import Sequence

import lightning.pytorch as pl
import torch

from apo_lightning.metrics.step_metrics import validation_metrics
from apo_lightning.types import Rollouts, ValidationOutput, concatenate


class HeldOut:
    """The held-out sets of a run.

    Args:
        names: of the sets, in the order of the data module's loaders.

    Attributes:
        last_step: step after which the sets were last looked at; None: never.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.last_step: int | None = None
        self._rollouts: dict[str, list[Rollouts]] = {}

    def is_due(self, trainer: pl.Trainer, steps: int) -> bool:
        """True where the sets were looked at before, and are to be looked at after these steps."""
        if self.last_step is None or self.last_step >= steps:
            return False
        interval = trainer.val_check_interval
        return steps >= trainer.max_steps or (interval is not None and steps % int(interval) == 0)

    def begin(self) -> None:
        """Forget a look that was broken off."""
        self._rollouts = {}

    def add(self, name: str, rollouts: Rollouts) -> None:
        """One batch of a set, judged."""
        self._rollouts.setdefault(name, []).append(rollouts)

    def finish(self, step: int, device: torch.device) -> list[ValidationOutput]:
        """What the look after `step` found; collective, since metrics are over all ranks.

        Returns:
            One for each set: its samples and its metrics by log name.
        """
        self.last_step = step
        whole = {name: concatenate(parts) for name, parts in self._rollouts.items()}
        return [
            ValidationOutput(
                step=step, name=name, rollouts=rollouts, metrics=validation_metrics(name, rollouts, device)
            )
            for name, rollouts in whole.items()
        ]

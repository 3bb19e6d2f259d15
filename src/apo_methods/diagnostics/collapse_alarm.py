"""Warns when held-out problems that were solved at the first validation pass are lost."""

import math
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl
from scipy.stats import binomtest

from apo_lightning.callbacks import StepCallback
from apo_lightning.common.console import say
from apo_lightning.errors import ConfigError
from apo_lightning.types import ValidationOutput


class CollapseAlarm(StepCallback):
    """Logs `alarm/…` at every validation pass after the first: a test for lost held-out problems.

    A held-out problem is lost if it had a right sample at the first pass and has none now, and gained in the reverse
    case. The exact one-sided McNemar test asks if more are lost than gained, at the level alpha/(planned passes ·
    sets): a run that loses nothing warns with a probability of at most alpha. Passes beyond the planned ones, in a
    run that was prolonged, are not tested.

    Each set's warning is printed once; the values are logged every time. Nothing is steered.

    Source: McNemar 1947, "Note on the sampling error of the difference between correlated proportions"; the exact form.

    Args:
        alpha: level of the test, in (0, 1).
    """

    def __init__(self, alpha: float = 0.05) -> None:
        if not 0 < alpha < 1:
            raise ConfigError(f"callbacks.collapse_alarm.alpha is {alpha}: give a value between 0 and 1, such as 0.05")
        self.alpha = alpha
        self.max_points: int | None = None
        self._base: dict[str, dict[str, tuple[int, int]]] = {}
        self._base_step: int | None = None
        self._point_steps: list[int] = []
        self._warned: list[str] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Count the evaluation points planned: validation passes after the first."""
        interval = trainer.val_check_interval
        if self.max_points is None:
            self.max_points = math.ceil(trainer.max_steps / interval) if isinstance(interval, int) else 1

    def on_validated(self, output: ValidationOutput) -> dict[str, float] | None:
        """Compare with the first pass, which is the one before training unless the callback was added later."""
        rollouts = output.rollouts
        correct = zip(rollouts.prompts, rollouts.is_correct.sum(1).tolist(), strict=True)
        counts = {prompt.id: (rollouts.group_size, num_correct) for prompt, num_correct in correct}
        if self._base_step is None or output.step <= self._base_step:
            self._base_step, self._base[output.name] = output.step, counts
            return None
        if output.step not in self._point_steps:
            self._point_steps.append(output.step)
        lost, gained = lost_and_gained(self._base[output.name], counts)
        assert self.max_points is not None
        is_planned = self._point_steps.index(output.step) < self.max_points
        level = self.alpha / (self.max_points * len(self._base)) if is_planned else math.nan
        p_value = loss_p_value(lost, gained)
        if p_value <= level and output.name not in self._warned:
            self._warned.append(output.name)
            say(
                f"warning: held-out {output.name}: {lost} problems that were solved at step {self._base_step} have no "
                f"right sample at step {output.step}, and {gained} the other way round (p = {p_value:.2g})"
            )
        found = {"num_lost": lost, "num_gained": gained, "p_value": p_value, "level": level}
        found["is_alarm"] = p_value <= level
        return {f"alarm/{output.name}/{name}": float(value) for name, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        """The first pass, the evaluation points so far and the sets that were warned of, as plain data."""
        return {
            "base": dict(self._base),
            "base_step": self._base_step,
            "point_steps": list(self._point_steps),
            "max_points": self.max_points,
            "warned": list(self._warned),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`; the number of planned evaluation points stays that of the first run."""
        self._base, self._base_step, self.max_points = (state_dict[k] for k in ("base", "base_step", "max_points"))
        self._point_steps, self._warned = list(state_dict["point_steps"]), list(state_dict["warned"])


def loss_p_value(num_lost: int, num_gained: int) -> float:
    """p-value in (0, 1] of the hypothesis that a change is at most as likely a loss as a gain; 1 if nothing changed.

    Example:
        Five losses and no gain: (1/2)⁵.

        >>> loss_p_value(5, 0)
        0.03125
    """
    num_changed = num_lost + num_gained
    return float(binomtest(num_lost, num_changed, alternative="greater").pvalue) if num_changed else 1.0


def lost_and_gained(before: Mapping[str, tuple[int, int]], after: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    """Problems with a right sample before and none after, and the reverse.

    Raises:
        ConfigError: the problems differ, or a problem has more samples in one pass, which makes a right one likelier.

    Example:
        >>> lost_and_gained({"a": (2, 1), "b": (2, 0)}, {"a": (2, 0), "b": (2, 0)})
        (1, 0)
    """
    if before.keys() != after.keys():
        raise ConfigError(
            f"{len(before)} held-out problems at first and {len(after)} now, not all the same: keep data.* unchanged"
        )
    if changed := [name for name in before if before[name][0] != after[name][0]]:
        was, is_now = before[changed[0]][0], after[changed[0]][0]
        raise ConfigError(
            f"held-out problem {changed[0]} had {was} samples at first and has {is_now} now: keep validation_samples"
        )
    solved = [(before[name][1] > 0, after[name][1] > 0) for name in before]
    return solved.count((True, False)), solved.count((False, True))

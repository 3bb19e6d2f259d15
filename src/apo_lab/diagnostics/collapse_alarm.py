"""Warns when held-out problems are lost, and notes when entropy or distinct answers have fallen since the start."""

import math
from collections.abc import Mapping
from typing import Any

import lightning.pytorch as pl

from apo_lab.diagnostics.prompt_history import visits_of
from apo_lab.diagnostics.settings import check_at_least, present
from apo_lab.statistics.cusum import Cusum
from apo_lab.statistics.mcnemar import mcnemar_p_value
from apo_lightning.callbacks import StepCallback
from apo_lightning.common.console import say
from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.types import StepOutput, ValidationOutput

SERIES = {"entropy": "entropy", "answers": "the number of distinct answers"}


class CollapseAlarm(StepCallback):
    """Logs `alarm/…`: a test for lost held-out problems, and a detector of falling entropy and answer counts.

    *Primary*, at every validation pass: a held-out problem is lost if it had a right sample at the first pass and has
    none now, and gained in the reverse case. The exact one-sided McNemar test asks if more are lost than gained, at the
    level alpha/(planned passes · sets): a run that loses nothing warns with a probability of at most alpha. Passes
    beyond the planned ones, in a run that was prolonged, are not tested.

    *Secondary*, at every step: a `Cusum` of log entropy and of log distinct answers per prompt. Entropy falls in every
    healthy run, so this is a notice of a change since the start, not of a failure.

    Each warning is printed once; the values are logged every time. Nothing is steered.

    Args:
        alpha: level of the primary test, in (0, 1).
        num_baseline: n₀, steps that the secondary is fitted on.
        threshold: h of the secondary; with n₀ = 40 and h = 12 about 4 in 100 stationary series alarm within 220 steps.
    """

    def __init__(self, alpha: float = 0.05, num_baseline: int = 40, threshold: float = 12.0) -> None:
        if not 0 < alpha < 1:
            raise ConfigError(f"callbacks.collapse_alarm.alpha is {alpha}: give a value between 0 and 1, such as 0.05")
        check_at_least("collapse_alarm", 3, num_baseline=num_baseline)
        if threshold <= 0:
            raise ConfigError(f"callbacks.collapse_alarm.threshold is {threshold}: give more than 0, such as 12")
        self.alpha = alpha
        self.cusums = {name: Cusum(num_baseline, threshold) for name in SERIES}
        self.max_points: int | None = None
        self._base: dict[str, dict[str, tuple[int, int]]] = {}
        self._base_step: int | None = None
        self._point_steps: list[int] = []
        self._said: list[str] = []

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Count the evaluation points planned: validation passes after the first."""
        interval = trainer.val_check_interval
        if self.max_points is None:
            self.max_points = math.ceil(trainer.max_steps / interval) if isinstance(interval, int) else 1

    def on_validated(self, output: ValidationOutput) -> dict[str, float] | None:
        """Compare with the first pass, which is the one before training unless the callback was added later."""
        counts = problem_counts(output)
        if self._base_step is None or output.step <= self._base_step:
            self._base_step, self._base[output.name] = output.step, counts
            return None
        if output.step not in self._point_steps:
            self._point_steps.append(output.step)
        lost, gained = lost_and_gained(self._base[output.name], counts)
        max_points = present(self.max_points)
        is_planned = self._point_steps.index(output.step) < max_points
        level = self.alpha / (max_points * len(self._base)) if is_planned else math.nan
        p_value = mcnemar_p_value(lost, gained, "greater")
        if p_value <= level:
            self._say(
                output.name,
                f"warning: held-out {output.name}: {lost} problems that were solved at step {self._base_step} have no "
                f"right sample at step {output.step}, and {gained} the other way round (p = {p_value:.2g})",
            )
        found = {"num_lost": lost, "num_gained": gained, "p_value": p_value, "level": level}
        found["is_alarm"] = p_value <= level
        return {f"alarm/{output.name}/{name}": float(value) for name, value in found.items()}

    def on_step(self, step: StepOutput) -> dict[str, float]:
        """Add this step's values to both series."""
        visits = [visit for _, visit in items_of_all_ranks(list(visits_of(step.rollouts)))]
        distinct = [len(visit.answer_counts) for visit in visits if visit.answer_counts]
        values = {
            "entropy": step.metrics.get("train/entropy", math.nan),
            "answers": sum(distinct) / len(distinct) if distinct else math.nan,
        }
        metrics = {}
        for name, cusum in self.cusums.items():
            cusum.add(math.log(values[name]) if values[name] > 0 else math.nan)
            fitted = cusum.baseline
            metrics[f"alarm/{name}_cusum"] = cusum.value
            metrics[f"alarm/{name}_autocorrelation"] = math.nan if fitted is None else fitted.autocorrelation
            metrics[f"alarm/{name}_num_left_out"] = float(cusum.num_left_out)
            if cusum.is_alarm:
                is_calibrated = present(fitted).is_calibrated
                doubt = "" if is_calibrated else " (not calibrated: the baseline is strongly autocorrelated)"
                self._say(
                    f"cusum {name}",
                    f"notice: at step {step.step} {SERIES[name]} is below its level of the first "
                    f"{cusum.num_baseline} steps{doubt}; this is a change, not necessarily a failure",
                )
        return metrics

    def _say(self, what: str, line: str) -> None:
        if what not in self._said:
            self._said.append(what)
            say(line)

    def state_dict(self) -> dict[str, Any]:
        """The first pass, the evaluation points so far and both sums, as plain data."""
        return {
            "base": {name: {k: list(v) for k, v in counts.items()} for name, counts in self._base.items()},
            "base_step": self._base_step,
            "look_steps": list(self._point_steps),
            "max_looks": self.max_points,
            "said": list(self._said),
            "cusums": {name: cusum.state_dict() for name, cusum in self.cusums.items()},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore `state_dict`; the number of planned evaluation points stays that of the first run."""
        self._base = {name: {k: (v[0], v[1]) for k, v in counts.items()} for name, counts in state_dict["base"].items()}
        self._base_step, self.max_points = state_dict["base_step"], state_dict["max_looks"]
        self._point_steps, self._said = list(state_dict["look_steps"]), list(state_dict["said"])
        for name, cusum in self.cusums.items():
            cusum.load_state_dict(state_dict["cusums"][name])


def problem_counts(output: ValidationOutput) -> dict[str, tuple[int, int]]:
    """Problem id → (number of samples, number of right ones)."""
    rollouts = output.rollouts
    correct = rollouts.is_correct.sum(1).tolist()
    return {prompt.id: (rollouts.group_size, c) for prompt, c in zip(rollouts.prompts, correct, strict=True)}


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

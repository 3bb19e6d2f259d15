"""Validation on held-out problems: when a pass is due, and its metrics."""

from collections.abc import Sequence

import lightning.pytorch as pl

from apo_lightning.contracts import check_error_rate
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.step.step_metrics import pass_at_one_and_all
from apo_lightning.types import Prompt, Rollouts, ValidationOutput, concatenate


class ValidationPass:
    """The validation passes of a run over its held-out sets.

    `names` are in the order of the data module's loaders; `last_step` is that of the last pass, None before the first.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self.last_step: int | None = None
        self._rollouts: dict[str, list[Rollouts]] = {}

    def is_due(self, trainer: pl.Trainer, steps: int) -> bool:
        """True where the sets were validated before, and should be validated after these steps."""
        if self.last_step is None or self.last_step >= steps:
            return False
        interval = trainer.val_check_interval  # 1.0, the end of an epoch that has none, where no interval is given
        return steps >= trainer.max_steps or (isinstance(interval, int) and steps % interval == 0)

    def begin(self) -> None:
        """Begin a pass; an interrupted one is forgotten."""
        self._rollouts = {}

    def share(self, batch: Sequence[Prompt], rank: int, world_size: int) -> list[Prompt]:
        """This rank's problems: every W-th of W ranks.

        Where there are fewer problems than ranks, those without one repeat the first: each has an engine to check.
        """
        return list(batch[rank::world_size]) or list(batch[:1])

    def add(self, name: str, batch: Sequence[Prompt], share: Rollouts) -> None:
        """Add one batch of a set, of which each rank scored its share; collective."""
        self._rollouts.setdefault(name, []).append(restore_prompt_order(from_all_ranks(share), len(batch)))

    def finish(self, step: int) -> list[ValidationOutput]:
        """Close the validation pass after `step`: samples and metrics of each set, over all ranks; collective.

        Raises:
            VerifierError: too many completions of a set could not be judged: the set's score would say nothing about
                the policy, and the best checkpoint is chosen by it.
        """
        whole = {name: concatenate(parts) for name, parts in self._rollouts.items()}
        for name, rollouts in whole.items():
            check_error_rate(rollouts.verdicts, of=f"held-out {name} at step {step}")
        self.last_step = step
        return [
            ValidationOutput(step=step, name=name, rollouts=rollouts, metrics=validation_metrics(name, rollouts))
            for name, rollouts in whole.items()
        ]


def restore_prompt_order(shares: Sequence[Rollouts], num_prompts: int) -> Rollouts:
    """The batch of `num_prompts` that `ValidationPass.share` divided among the ranks, in its original order."""
    groups = [share.groups for share in shares]
    return concatenate([groups[i % len(shares)][i // len(shares)] for i in range(num_prompts)])


def validation_metrics(name: str, rollouts: Rollouts) -> dict[str, float]:
    """pass@1 and pass@n of one held-out set and how its completions were judged, by log name."""
    metrics = {f"val/{name}/pass@{k}": float(values.mean()) for k, values in pass_at_one_and_all(rollouts).items()}
    metrics[f"val/{name}/truncated_fraction"] = float(rollouts.is_truncated.double().mean())
    metrics |= {f"val/{name}/num_{status}": float(count) for status, count in rollouts.verdict_counts.items()}
    return metrics

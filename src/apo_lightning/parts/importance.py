"""Importance weights between policy and engine, and where their bounds act, by the length of completions."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.policy_loss import Importance
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.step_metrics import means_of
from apo_lightning.types import StepOutput

OUTSIDE = Importance.NAMES[1]


def corrected(loss: PolicyLoss, settings: Mapping[str, Any]) -> PolicyLoss:
    """The loss with the weights that `importance` and `importance_bounds` name; raises `ConfigError` if all are 1."""
    mode, bounds = settings["importance"], settings["importance_bounds"]
    if mode is None and bounds is None:
        return loss
    if settings["old_logprobs"] == "rollout":
        raise ConfigError(
            f"importance is {mode} with old_logprobs=rollout: π_old is then the engine's, and every weight "
            "π_old/π_rollout is 1; give old_logprobs=trainer, or importance=null"
        )
    return replace(loss, importance=Importance(mode, bounds))


class ImportanceByLength(Part):
    """Logs the share of tokens outside the bounds in each quartile of the step's completion lengths.

    `sequence_mask` drops long completions first, since the spread of a product grows with the length.
    """

    name = "importance"

    def metrics(self, setup: Setup, step: StepOutput) -> dict[str, float]:
        """`train/importance_outside_fraction_q1` (shortest) to `_q4`, over the updated tokens of all ranks."""
        outside = step.loss_metrics[OUTSIDE]
        lengths = step.rollouts.lengths.flatten().double()
        of_all_ranks = lengths.new_tensor(items_of_all_ranks(lengths.tolist()))
        limits = of_all_ranks.quantile(lengths.new_tensor([0.25, 0.5, 0.75]))
        place = torch.bucketize(lengths, limits).to(outside.device)[step.tokens.sequence_ids]
        columns = {f"train/{OUTSIDE}_q{n + 1}": torch.where(place == n, outside, torch.nan) for n in range(4)}
        return means_of(columns, setup.device)[0]

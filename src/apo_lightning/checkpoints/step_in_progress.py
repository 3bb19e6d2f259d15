"""A training step that was begun: what it has sampled and computed, so that another process can end it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.metrics.step_metrics import UpdateRecord
from apo_lightning.metrics.throughput import Work
from apo_lightning.types import Completion, Prompt, Rollouts, Verdict
from apo_lightning.update.table import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateInProgress:
    """An update with some of its mini-batches done."""

    columns: Mapping[str, Tensor]
    """Of the step's table."""
    loss_mask: Bool[Tensor, "tokens"]
    """Tokens whose reference rows the loss may use."""
    record: UpdateRecord
    """Of the mini-batches that are done."""

    def resume(self, table: StepTable) -> tuple[Bool[Tensor, "tokens"], UpdateRecord]:
        """Fill in the table; the loss mask, and the record to go on with."""
        table.restore(self.columns)
        return self.loss_mask, self.record


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInProgress:
    """One rank's part."""

    rollouts: Rollouts
    update: UpdateInProgress | None = None
    """None: it was sampled, and no more."""

    @classmethod
    def of(cls, table: StepTable, loss_mask: Bool[Tensor, "tokens"], record: UpdateRecord) -> "StepInProgress":
        """In the middle of the update."""
        update = UpdateInProgress(columns=table.columns(), loss_mask=loss_mask, record=record)
        return cls(rollouts=table.rollouts, update=update)

    @property
    def minibatches(self) -> int:
        """Optimizer steps that are done."""
        return 0 if self.update is None else self.update.record.num_minibatches


def to_plain(step: StepInProgress) -> dict[str, Any]:
    """Numbers, strings, tensors, lists and dicts: what is read back without running any code."""
    update = step.update
    return {
        "rollouts": asdict(step.rollouts),
        "update": None
        if update is None
        else {
            "columns": dict(update.columns),
            "loss_mask": update.loss_mask,
            "record": _record_to_plain(update.record),
        },
    }


def from_plain(plain: Mapping[str, Any]) -> StepInProgress:
    """The other way round."""
    rollouts, update = plain["rollouts"], plain["update"]
    return StepInProgress(
        rollouts=Rollouts(
            step=rollouts["step"],
            prompts=tuple(Prompt(**prompt) for prompt in rollouts["prompts"]),
            completions=tuple(Completion(**completion) for completion in rollouts["completions"]),
            texts=tuple(rollouts["texts"]),
            verdicts=tuple(Verdict(**verdict) for verdict in rollouts["verdicts"]),
            group_size=rollouts["group_size"],
            policy_version=rollouts["policy_version"],
        ),
        update=None
        if update is None
        else UpdateInProgress(
            columns=update["columns"],
            loss_mask=update["loss_mask"],
            record=_record_from_plain(update["record"]),
        ),
    )


def _record_to_plain(record: UpdateRecord) -> dict[str, Any]:
    plain = {name: getattr(record, name) for name in UpdateRecord.__dataclass_fields__}
    return plain | {
        "parts": [(index, dict(metrics)) for index, metrics in record.parts],
        "metric_names": sorted(record.metric_names),
        "skipped_values": dict(record.skipped_values),
        "work": asdict(record.work),
    }


def _record_from_plain(plain: Mapping[str, Any]) -> UpdateRecord:
    return UpdateRecord(**{**plain, "metric_names": frozenset(plain["metric_names"]), "work": Work(**plain["work"])})


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors within lists, tuples and dicts, moved."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    return type(value)(to_device(item, device) for item in value) if isinstance(value, list | tuple) else value

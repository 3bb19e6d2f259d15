"""The numbers a training step logs, reduced over its tokens, completions and ranks by torchmetrics."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torchmetrics import CatMetric, Metric, SumMetric

from apo_lightning.metrics.pass_at_k import PassAtK
from apo_lightning.metrics.token_mean import TokenMean
from apo_lightning.types import LossOutput, Rollouts, StepTokens

STATUSES = ("correct", "incorrect", "unparsed", "timeout", "error")


@dataclass(slots=True)
class UpdateRecord:
    """What the optimizer steps of one rollout add up to."""

    num_tokens: int
    """[T] of the step."""
    loss: float = 0.0
    """Sum of the mini-batches' scalar losses, this rank's share."""
    grad_norms: list[float] = field(default_factory=list)
    """Before clipping, one an optimizer step."""
    num_empty: int = 0
    """Mini-batches without a kept token: no optimizer step."""
    num_nonfinite: int = 0
    """Gradients that were not finite: no optimizer step."""
    logprob_gap: float = math.nan
    parts: list[tuple[Tensor, Mapping[str, Tensor]]] = field(default_factory=list)
    """Token indices and the loss's metrics there, a micro-batch each."""

    def add(self, scalar: Tensor, output: LossOutput, token_index: Int[Tensor, "part"]) -> None:
        """One micro-batch."""
        self.loss += float(scalar.detach())
        self.parts.append((token_index, output.metrics))

    def count_step(self, grad_norm: float, num_tokens: int) -> bool:
        """Whether the optimizer may step; what it skips is counted."""
        if num_tokens == 0:
            self.num_empty += 1
        elif not math.isfinite(grad_norm):
            self.num_nonfinite += 1
        else:
            self.grad_norms.append(grad_norm)
            return True
        return False

    @property
    def loss_metrics(self) -> dict[str, Tensor]:
        """The loss's per-token metrics [T]; NaN where they do not apply or the token did not enter the update."""
        table: dict[str, Tensor] = {}
        for token_index, metrics in self.parts:
            for name, values in metrics.items():
                if name not in table:
                    table[name] = torch.full((self.num_tokens,), torch.nan, device=values.device)
                table[name][token_index] = values.float()
        return table


class StepMetrics(nn.Module):
    """Reduces one step at a time. Non-finite values are left out of a mean and counted in `train/num_nonfinite`.

    Args:
        medians: log names that are reported as a median: ratios with a long tail.
    """

    def __init__(self, medians: frozenset[str] = frozenset({"apo/anchor_ratio"})) -> None:
        super().__init__()
        self.medians = medians
        self.reducers = nn.ModuleDict()

    def compute(
        self,
        rollouts: Rollouts,
        tokens: StepTokens,
        record: UpdateRecord,
        timings: Mapping[str, float],
    ) -> dict[str, float]:
        """Everything that is logged of a step, by log name."""
        device = tokens.old_logprobs.device
        means = self._completion_means(rollouts, tokens) | self._token_means(tokens)
        loss_metrics = {log_name(name): values for name, values in record.loss_metrics.items()}
        means |= {name: values for name, values in loss_metrics.items() if name not in self.medians}
        means["train/grad_norm"] = torch.tensor(record.grad_norms)
        sums = {f"reward/num_{status}": float(count) for status, count in count_verdicts(rollouts).items()}
        sums["train/loss"] = record.loss
        sums["num_tokens"] = float(rollouts.lengths.sum())

        result = {name: self._reduce(name, SumMetric, torch.tensor(value).to(device)) for name, value in sums.items()}
        num_infinite = 0
        for name, values in means.items():
            reduced = self._reduce(name, TokenMean, values.to(device))
            result[name] = float(reduced.mean)
            num_infinite += int(reduced.num_infinite)
        for name in self.medians & loss_metrics.keys():
            result[name] = _median(self._reduce(name, CatMetric, loss_metrics[name]))
        result |= {f"train/pass@{k}": value for k, value in pass_at_one_and_all(rollouts, device).items()}
        result["train/num_nonfinite"] = float(num_infinite)
        result["train/num_empty_minibatches"] = float(record.num_empty)
        result["train/num_skipped_steps"] = float(record.num_nonfinite)
        result["sync/logprob_gap"] = record.logprob_gap
        result |= {f"time/{phase}": seconds for phase, seconds in timings.items()}
        result["perf/tokens_per_second"] = float(result.pop("num_tokens")) / timings["step"]
        return {name: float(value) for name, value in result.items()}

    def _completion_means(self, rollouts: Rollouts, tokens: StepTokens) -> dict[str, Tensor]:
        lengths = rollouts.lengths.flatten().float()
        first_token = torch.cat([torch.zeros(1), lengths.cumsum(0)[:-1]]).long()
        return {
            "train/reward": rollouts.rewards.flatten(),
            "train/completion_tokens": lengths,
            "train/truncated_fraction": torch.tensor(
                [float(c.finish_reason == "length") for c in rollouts.completions]
            ),
            "train/zero_advantage_fraction": (tokens.advantages.cpu()[first_token] == 0).float(),
        }

    def _token_means(self, tokens: StepTokens) -> dict[str, Tensor]:
        """Over the tokens that the sampling policy was run on.

        That is all of them, or with `old_logprobs: rollout` those of the first mini-batch. A NaN among them is a fault
        and must be counted, not taken for "not applicable": it becomes an infinity.
        """
        known = ~tokens.old_logprobs.isnan()
        values = {"train/entropy": tokens.entropy[known], "train/max_prob": tokens.max_prob[known]}
        return {name: value.nan_to_num(nan=torch.inf) for name, value in values.items()}

    def _reduce(self, name: str, kind: type[Metric], values: Tensor) -> Any:
        """Over all ranks, by torchmetrics."""
        if name not in self.reducers:
            self.reducers[name] = kind().to(values.device)
        reducer = self.reducers[name]
        assert isinstance(reducer, Metric)
        reducer.update(values)
        reduced = reducer.compute()
        reducer.reset()
        return reduced


def _median(values: Tensor | list[Tensor]) -> float:
    values = torch.as_tensor(values, dtype=torch.float32).flatten()
    return float(values.nanmedian()) if len(values) else math.nan


def log_name(metric: str) -> str:
    """A loss names its metrics with a namespace of its own (`apo/…`) or without, for `train/…`.

    Example:
        >>> log_name("clip_fraction"), log_name("apo/anchor_ratio")
        ('train/clip_fraction', 'apo/anchor_ratio')
    """
    return metric if "/" in metric else f"train/{metric}"


def count_verdicts(rollouts: Rollouts) -> dict[str, int]:
    """How many completions got each status; zeros included, so that the log has every column from the first step."""
    counts = Counter(verdict.status for verdict in rollouts.verdicts)
    return {status: counts[status] for status in STATUSES}


def pass_at_one_and_all(rollouts: Rollouts, device: torch.device) -> dict[int, float]:
    """pass@1 and pass@G over all ranks, by k."""
    num_correct: Int[Tensor, "prompts"] = rollouts.is_correct.sum(1).to(device)
    result = {}
    for k in sorted({1, rollouts.group_size}):
        metric = PassAtK(k).to(device)
        metric.update(torch.full_like(num_correct, rollouts.group_size), num_correct)
        result[k] = float(metric.compute())
    return result


def validation_metrics(name: str, rollouts: Rollouts, device: torch.device) -> dict[str, float]:
    """pass@1 and pass@n of one held-out set, by log name."""
    metrics = {f"val/{name}/pass@{k}": value for k, value in pass_at_one_and_all(rollouts, device).items()}
    num_truncated = sum(completion.finish_reason == "length" for completion in rollouts.completions)
    metrics[f"val/{name}/truncated_fraction"] = num_truncated / len(rollouts.completions)
    return metrics

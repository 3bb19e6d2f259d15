"""The numbers a training step logs, reduced over its tokens, completions and ranks by torchmetrics."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torchmetrics import CatMetric, Metric, SumMetric

from apo_lightning.metrics.all_token_means import AllTokenMeans, completion_totals
from apo_lightning.metrics.mean_pass_at_k import MeanPassAtK
from apo_lightning.metrics.throughput import ModelSize, Speed, Work, training_flops
from apo_lightning.metrics.token_mean import TokenMean
from apo_lightning.types import LossOutput, Rollouts, StepTokens

# By default torchmetrics leaves NaN out of what it sums and gathers.
KeepingSum = partial(SumMetric, nan_strategy="disable")
KeepingCat = partial(CatMetric, nan_strategy="disable")
MEDIANS = frozenset({"apo/anchor_ratio"})
"""Log names of metrics that are reported as a median over tokens: ratios with a long tail."""


@dataclass(slots=True)
class UpdateRecord:
    """What the optimizer steps of one rollout add up to."""

    num_tokens: int
    """Response tokens that may run on this rank, T of its table."""
    loss: float = 0.0
    """Sum of the mini-batches' scalar losses, this rank's share."""
    grad_norms: list[float] = field(default_factory=list)
    """Before clipping, one an optimizer step."""
    num_empty: int = 0
    """Mini-batches without a kept token: no optimizer step."""
    num_nonfinite: int = 0
    """Gradients that were not finite: no optimizer step."""
    logprob_gap: float = math.nan
    """Mean |engine − trainer| log-prob [nats a token], of the rank where it is largest."""
    logprob_gap_tolerance: float = math.nan
    """What rounding explains of it [nats a token]."""
    parts: list[tuple[Tensor, Mapping[str, Tensor]]] = field(default_factory=list)
    """Token indices and the loss's metrics there, a micro-batch each."""
    metric_defaults: Mapping[str, float] = field(default_factory=dict)
    """By name, the value of a loss's metric on all tokens that the update does not run; without one, NaN."""
    work: Work = field(default_factory=Work)
    """What the forwards with a gradient ran, this rank's share."""
    updated: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.bool))
    """[T] True for the tokens that the update ran; of what this rank has sampled, filled in by `close`."""
    loss_metrics: Mapping[str, Tensor] = field(default_factory=dict)
    """The loss's metrics [T] by name, likewise; on tokens that the update did not run, `metric_defaults` or NaN."""

    def add(self, scalar: Tensor, output: LossOutput, token_index: Int[Tensor, "part"]) -> None:
        """Enter what the loss said of some tokens."""
        self.loss += float(scalar.detach())
        self.parts.append((token_index, output.metrics))

    def needs_engine_check(self, grad_norm: float) -> bool:
        """Whether the engine is to be held against the policy before this optimizer step.

        Once a step, and not with log-probs that may be no numbers: a broken policy was not lost on the way.
        """
        return math.isfinite(grad_norm) and math.isnan(self.logprob_gap)

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
    def mean_loss(self) -> float:
        """Mean scalar loss of the mini-batches that had a kept token, this rank's share; NaN where none had."""
        num_losses = self.num_minibatches - self.num_empty
        return self.loss / num_losses if num_losses else math.nan

    @property
    def num_minibatches(self) -> int:
        """Mini-batches that are done, with an optimizer step or without."""
        return len(self.grad_norms) + self.num_empty + self.num_nonfinite

    @property
    def own_metric_names(self) -> frozenset[str]:
        """What the loss's metrics are called, as far as this rank has seen any."""
        return frozenset(self.metric_defaults).union(*(metrics for _, metrics in self.parts))

    def close(self, metric_names: frozenset[str], send_back: Callable[[Tensor], Tensor], device: torch.device) -> None:
        """Make `updated` and `loss_metrics` of the tokens that this rank has sampled; collective.

        Args:
            metric_names: of the loss on any rank. One that ran nothing has none of its own, but a reduction is a
                collective: all must make the same ones.
            send_back: one row for each token that ran here → one for each that was sampled here.
            device: of the tokens.
        """
        updated = torch.zeros(self.num_tokens, dtype=torch.bool, device=device)
        for index, _ in self.parts:
            updated[index] = True
        self.updated = send_back(updated)
        self.loss_metrics = {name: send_back(self._loss_metric(name, device)) for name in sorted(metric_names)}

    def _loss_metric(self, name: str, device: torch.device) -> Tensor:
        column = torch.full((self.num_tokens,), self.metric_defaults.get(name, torch.nan), device=device)
        for index, metrics in self.parts:
            if name in metrics:
                column[index] = metrics[name].float()
        return column


class StepMetrics(nn.Module):
    """Reduces one step at a time; docs/metrics.md says what each number is a mean of.

    Non-finite values are left out of a mean and counted in `train/num_nonfinite`. A sum, or an estimate for all tokens,
    that one of them enters is NaN.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reducers = nn.ModuleDict()

    def compute(self, rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord) -> dict[str, float]:
        """Everything that is logged of a step, by log name, but for how long it took."""
        device = tokens.old_logprobs.device
        means = self._completion_means(rollouts, tokens) | self._token_means(tokens, record)
        loss_metrics = {log_name(name): values for name, values in record.loss_metrics.items()}
        means |= {name: values for name, values in loss_metrics.items() if name not in MEDIANS}
        means["train/grad_norm"] = torch.tensor(record.grad_norms)
        sums = {f"reward/num_{status}": float(count) for status, count in rollouts.verdict_counts.items()}
        sums["train/loss"] = record.mean_loss
        sums["perf/num_preempted"] = float(rollouts.num_preempted)

        result: dict[str, Any] = {name: self._sum(name, value, device) for name, value in sums.items()}
        num_infinite = 0
        for name, values in means.items():
            reduced = self._reduce(name, TokenMean, values.to(device))
            result[name] = float(reduced.mean)
            num_infinite += int(reduced.num_infinite)
        estimates, num_unsound = self._all_token_means(tokens)
        result |= estimates
        for name in MEDIANS & loss_metrics.keys():
            result[name] = _median(self._reduce(name, KeepingCat, loss_metrics[name].to(device)))
        result |= {f"train/pass@{k}": value for k, value in pass_at_one_and_all(rollouts, device).items()}
        result["train/num_nonfinite"] = float(num_infinite + num_unsound)
        result["train/num_empty_minibatches"] = float(record.num_empty)
        result["train/num_skipped_steps"] = float(record.num_nonfinite)
        result["sync/logprob_gap"] = record.logprob_gap
        result["sync/logprob_gap_tolerance"] = record.logprob_gap_tolerance
        return {name: float(value) for name, value in result.items()}

    def speed(
        self, rollouts: Rollouts, record: UpdateRecord, size: ModelSize, peak: float | None, device: torch.device
    ) -> Speed:
        """What all ranks did in this step, to be divided by the time it took.

        Args:
            rollouts: this rank's.
            record: this rank's.
            size: of the policy.
            peak: of all devices together [FLOP/s]; None: unknown.
            device: for the reduction.
        """
        update = Work(
            num_tokens=int(self._sum("num_tokens", record.work.num_tokens, device)),
            num_pairs=int(self._sum("num_pairs", record.work.num_pairs, device)),
            num_rows=int(self._sum("num_rows", record.work.num_rows, device)),
        )
        return Speed(
            num_sampled=int(self._sum("num_sampled", int(rollouts.lengths.sum()), device)),
            update=update,
            update_flops=training_flops(size, update),
            peak_flops_per_second=peak,
        )

    def _sum(self, name: str, value: float | int, device: torch.device) -> float:
        # Counts of pairs exceed what float32 holds exactly.
        return float(self._reduce(name, KeepingSum, torch.tensor(value, dtype=torch.float64, device=device)))

    def _completion_means(self, rollouts: Rollouts, tokens: StepTokens) -> dict[str, Tensor]:
        """Over all completions of the step."""
        is_moving = torch.zeros(len(rollouts.completions), dtype=torch.bool)
        is_moving[tokens.sequence_ids[tokens.advantages != 0].cpu()] = True
        return {
            "train/reward": _fault_if_nan(rollouts.rewards.flatten()),
            "train/completion_tokens": rollouts.lengths.flatten().float(),
            "train/truncated_fraction": torch.tensor(
                [float(c.finish_reason == "length") for c in rollouts.completions]
            ),
            "train/zero_advantage_fraction": (~is_moving).float(),
        }

    def _token_means(self, tokens: StepTokens, record: UpdateRecord) -> dict[str, Tensor]:
        """Over all tokens of the step, and at the sampling policy over those that the update was run on.

        With `old_logprobs: rollout` nobody asks that policy about the later mini-batches.
        """
        updated = record.updated
        asked = updated & tokens.required.to(updated.device)[tokens.sequence_ids]
        return {
            "train/surprisal": _fault_if_nan(-tokens.rollout_logprobs),
            "train/entropy_updated": _fault_if_nan(tokens.entropy[asked]),
            "train/max_prob_updated": _fault_if_nan(tokens.max_prob[asked]),
            "train/skipped_fraction": (~updated).float(),
        }

    def _all_token_means(self, tokens: StepTokens) -> tuple[dict[str, float], int]:
        """Entropy and max-prob by log name, and how many of their values are no numbers."""
        device = tokens.old_logprobs.device
        parts = (completion_totals(tokens), tokens.required, tokens.drawn)
        found = self._reduce("all_tokens", AllTokenMeans, *(part.to(device) for part in parts))
        names = ("train/entropy", "train/max_prob")
        means = dict(zip(names, found.means.tolist(), strict=True))
        errors = {f"{name}_se": error for name, error in zip(names, found.standard_errors.tolist(), strict=True)}
        return means | errors, int(found.num_nonfinite)

    def _reduce(self, name: str, kind: Callable[[], Metric], *values: Tensor) -> Any:
        """What a metric of this kind computes from the values of all ranks."""
        if name not in self.reducers:
            self.reducers[name] = kind().to(values[0].device)
        reducer = self.reducers[name]
        assert isinstance(reducer, Metric)
        reducer.update(*values)
        reduced = reducer.compute()
        reducer.reset()
        return reduced


def _fault_if_nan(values: Tensor) -> Tensor:
    """Turn NaN into inf where a number applies everywhere: it is to be counted, not taken for "not applicable"."""
    return values.nan_to_num(nan=torch.inf)


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


def pass_at_one_and_all(rollouts: Rollouts, device: torch.device) -> dict[int, float]:
    """pass@1 and pass@G over all ranks, by k."""
    num_correct: Int[Tensor, "prompts"] = rollouts.is_correct.sum(1).to(device)
    result = {}
    for k in sorted({1, rollouts.group_size}):
        metric = MeanPassAtK(k).to(device)
        metric.update(torch.full_like(num_correct, rollouts.group_size), num_correct)
        result[k] = float(metric.compute())
    return result


def validation_metrics(name: str, rollouts: Rollouts, device: torch.device) -> dict[str, float]:
    """pass@1 and pass@n of one held-out set and how its completions were judged, by log name."""
    metrics = {f"val/{name}/pass@{k}": value for k, value in pass_at_one_and_all(rollouts, device).items()}
    num_truncated = sum(completion.finish_reason == "length" for completion in rollouts.completions)
    metrics[f"val/{name}/truncated_fraction"] = num_truncated / len(rollouts.completions)
    metrics |= {f"val/{name}/num_{status}": float(count) for status, count in rollouts.verdict_counts.items()}
    return metrics

"""The metrics of a training step, reduced over its tokens, completions and ranks by torchmetrics."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torchmetrics import CatMetric, Metric, SumMetric

from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.metrics.all_token_means import AllTokenMeans, completion_totals
from apo_lightning.metrics.token_mean import TokenMean, pass_at_one_and_all
from apo_lightning.types import Rollouts, SamplingRounds, StepTokens, mixed
from apo_lightning.update.update_record import UpdateRecord

# By default torchmetrics leaves NaN out of what it sums and gathers.
KeepingSum = partial(SumMetric, nan_strategy="disable")
KeepingCat = partial(CatMetric, nan_strategy="disable")
MEDIANS = frozenset({"apo/anchor_ratio"})
"""Log names of metrics that are reported as a median over tokens: ratios with a long tail."""


class StepMetrics(nn.Module):
    """Reduces one step at a time; docs/metrics.md says what each number is a mean of.

    Non-finite values are excluded from means and counted in `train/num_nonfinite`. A sum, or an estimate for all
    tokens, that includes one is NaN.
    """

    def __init__(self) -> None:
        super().__init__()
        self.reducers = nn.ModuleDict()

    def compute(self, rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord) -> dict[str, float]:
        """The metrics of a step by log name, without times and rates."""
        device = tokens.old_logprobs.device
        means = self._completion_means(rollouts, tokens) | self._token_means(rollouts, tokens, record)
        loss_metrics = {log_name(name): values for name, values in record.loss_metrics.items()}
        means |= {name: values for name, values in loss_metrics.items() if name not in MEDIANS}
        means["train/grad_norm"] = torch.tensor(record.grad_norms)
        sampled = rollouts.first_round
        sums = {f"reward/num_{status}": float(count) for status, count in sampled.verdict_counts.items()}
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
        result |= {f"train/pass@{k}": value for k, value in pass_at_one_and_all(sampled, device).items()}
        result |= _sampling(rollouts.rounds)
        result["train/num_nonfinite"] = float(num_infinite + num_unsound)
        result["train/num_empty_minibatches"] = float(record.num_empty)
        result["train/num_skipped_steps"] = float(record.num_nonfinite)
        result["sync/logprob_gap"] = record.logprob_gap
        result["sync/logprob_gap_tolerance"] = record.logprob_gap_tolerance
        return {name: float(value) for name, value in result.items()}

    def _sum(self, name: str, value: float | int, device: torch.device) -> float:
        # Counts of pairs exceed what float32 holds exactly.
        return float(self._reduce(name, KeepingSum, torch.tensor(value, dtype=torch.float64, device=device)))

    def _completion_means(self, rollouts: Rollouts, tokens: StepTokens) -> dict[str, Tensor]:
        """Over all completions of the step: those sampled first, and for advantages those selected."""
        is_moving = torch.zeros(len(rollouts.completions), dtype=torch.bool)
        is_moving[tokens.sequence_ids[tokens.advantages != 0].cpu()] = True
        sampled = rollouts.first_round
        means = {
            "train/reward": _fault_if_nan(sampled.rewards.flatten()),
            "train/completion_tokens": sampled.lengths.flatten().float(),
            "train/truncated_fraction": torch.tensor([float(c.finish_reason == "length") for c in sampled.completions]),
            "train/zero_advantage_fraction": (~is_moving).float(),
        }
        if rollouts.rounds is not None:
            means["train/kept/reward"] = _fault_if_nan(rollouts.rewards[mixed(rollouts.is_correct)].flatten())
        return means

    def _token_means(self, rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord) -> dict[str, Tensor]:
        """Over all tokens sampled first, and at the sampling policy over those that the update was run on.

        With `old_logprobs: rollout` that policy is not run on the later mini-batches.
        """
        updated = record.updated
        logprobs = tokens.rollout_logprobs
        if rollouts.rounds is not None:
            logprobs = torch.tensor([value for c in rollouts.first_round.completions for value in c.logprobs])
        asked = updated & tokens.required.to(updated.device)[tokens.sequence_ids]
        return {
            "train/surprisal": _fault_if_nan(-logprobs),
            "train/entropy_updated": _fault_if_nan(tokens.entropy[asked]),
            "train/max_prob_updated": _fault_if_nan(tokens.max_prob[asked]),
            "train/skipped_fraction": (~updated).float(),
            **_outside_by_length(rollouts, tokens, record),
        }

    def _all_token_means(self, tokens: StepTokens) -> tuple[dict[str, float], int]:
        """Entropy and max-prob by log name, and how many of their values are not finite."""
        device = tokens.old_logprobs.device
        parts = (completion_totals(tokens), tokens.required, tokens.drawn)
        found = self._reduce("all_tokens", AllTokenMeans, *(part.to(device) for part in parts))
        names = ("train/entropy", "train/max_prob")
        means = dict(zip(names, found.means.tolist(), strict=True))
        errors = {f"{name}_se": error for name, error in zip(names, found.standard_errors.tolist(), strict=True)}
        return means | errors, int(found.num_nonfinite)

    def _reduce(self, name: str, kind: Callable[[], Metric], *values: Tensor) -> Any:
        """The result of a metric of this kind, from the values of all ranks."""
        if name not in self.reducers:
            self.reducers[name] = kind().to(values[0].device)
        reducer = self.reducers[name]
        assert isinstance(reducer, Metric)
        reducer.update(*values)
        reduced = reducer.compute()
        reducer.reset()
        return reduced


def _sampling(rounds: SamplingRounds | None) -> dict[str, float]:
    """What dynamic sampling cost, by log name."""
    if rounds is None:
        return {}
    return {
        "sampling/num_rounds": float(rounds.num_rounds),
        "sampling/num_prompts": float(rounds.num_prompts),
        "sampling/num_tokens": float(rounds.num_tokens),
        "sampling/kept_fraction": rounds.num_mixed / rounds.num_prompts,
        "sampling/discarded_fraction": 1 - rounds.num_trained_tokens / rounds.num_tokens,
    }


def _outside_by_length(rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord) -> dict[str, Tensor]:
    """Tokens outside the importance bounds, by quartile of their completion's length in the step; collective."""
    outside = record.loss_metrics.get("importance_outside_fraction")
    if outside is None:
        return {}
    lengths = rollouts.lengths.flatten().double()
    of_all_ranks = lengths.new_tensor(items_of_all_ranks(lengths.tolist()))
    limits = of_all_ranks.quantile(lengths.new_tensor([0.25, 0.5, 0.75]))
    place = torch.bucketize(lengths, limits).to(outside.device)[tokens.sequence_ids]
    return {
        f"train/importance_outside_fraction_q{n}": torch.where(place == n - 1, outside, torch.nan) for n in (1, 2, 3, 4)
    }


def _fault_if_nan(values: Tensor) -> Tensor:
    """Turn NaN into inf where a number applies everywhere: it must be counted, not read as "not applicable"."""
    return values.nan_to_num(nan=torch.inf)


def _median(values: Tensor | list[Tensor]) -> float:
    values = torch.as_tensor(values, dtype=torch.float32).flatten()
    return float(values.nanmedian()) if len(values) else math.nan


def log_name(metric: str) -> str:
    """The log name of a loss's metric: as it is with a namespace (`apo/…`), else under `train/…`.

    Example:
        >>> log_name("clip_fraction"), log_name("apo/anchor_ratio")
        ('train/clip_fraction', 'apo/anchor_ratio')
    """
    return metric if "/" in metric else f"train/{metric}"

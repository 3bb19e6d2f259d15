"""The metrics of a training step, reduced over its tokens, completions and ranks by torchmetrics."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torchmetrics import CatMetric

from apo_lightning.distributed.gathering import items_of_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.metrics.all_token_means import AllTokenMeans, completion_totals
from apo_lightning.metrics.token_mean import TokenMeans, pass_at_one_and_all
from apo_lightning.types import Rollouts, SamplingRounds, StepTokens, mixed
from apo_lightning.update.update_record import UpdateRecord

MEDIANS = frozenset({"apo/anchor_ratio"})
"""Log names of metrics that are reported as a median over tokens: ratios with a long tail."""


def step_metrics(rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord, ranks: Ranks) -> dict[str, float]:
    """The metrics of a step by log name, without times and rates; docs/metrics.md says what each is a mean of.

    Non-finite values are excluded from means and counted in `train/num_nonfinite`. A sum, or an estimate for all
    tokens, that includes one is NaN. Collective.
    """
    loss_metrics = {log_name(name): values for name, values in record.loss_metrics.items()}
    means = _completion_means(rollouts, tokens) | _token_means(rollouts, tokens, record)
    means |= {name: values for name, values in loss_metrics.items() if name not in MEDIANS}
    means["train/grad_norm"] = torch.tensor(record.grad_norms)
    result, num_infinite = _reduce(means, tokens.old_logprobs.device)
    estimates, num_unsound = _all_token_means(tokens)
    result |= estimates
    for name in MEDIANS & loss_metrics.keys():
        result[name] = _median(loss_metrics[name])
    sums = {f"reward/num_{status}": float(n) for status, n in rollouts.first_round.verdict_counts.items()}
    sums |= {"train/loss": record.mean_loss, "perf/num_preempted": float(rollouts.num_preempted)}
    result |= dict(zip(sums, ranks.sums(list(sums.values())), strict=True))
    result |= _sampling(rollouts.rounds)
    result["train/num_nonfinite"] = float(num_infinite + num_unsound)
    result["train/num_empty_minibatches"] = float(record.num_empty)
    result["train/num_skipped_steps"] = float(record.num_nonfinite)
    result["sync/logprob_gap"] = record.logprob_gap
    result["sync/logprob_gap_tolerance"] = record.logprob_gap_tolerance
    return result


def _reduce(columns: Mapping[str, Tensor], device: torch.device) -> tuple[dict[str, float], int]:
    """The mean of each column over all ranks, and how many of all values are infinite."""
    names = sorted(columns, key=lambda name: columns[name].device.type)
    metric = TokenMeans(len(names)).to(device)
    metric.update([columns[name] for name in names])
    means, num_infinite = metric.compute()
    return dict(zip(names, means.tolist(), strict=True)), int(num_infinite.sum())


def _completion_means(rollouts: Rollouts, tokens: StepTokens) -> dict[str, Tensor]:
    """Over all completions of the step: those sampled first, and for advantages those selected."""
    owner, moves = tokens.sequence_ids, (tokens.advantages != 0).float()
    num_moving = moves.new_zeros(len(rollouts.completions)).index_add_(0, owner, moves)
    sampled = rollouts.first_round
    means = {
        "train/reward": _fault_if_nan(sampled.rewards.flatten()),
        "train/completion_tokens": sampled.lengths.flatten().float(),
        "train/truncated_fraction": torch.tensor([float(c.finish_reason == "length") for c in sampled.completions]),
        "train/zero_advantage_fraction": (num_moving == 0).float(),
        **{f"train/pass@{k}": values for k, values in pass_at_one_and_all(sampled).items()},
    }
    if rollouts.rounds is not None:
        means["train/kept/reward"] = _fault_if_nan(rollouts.rewards[mixed(rollouts.is_correct)].flatten())
    return means


def _token_means(rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord) -> dict[str, Tensor]:
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
        "train/entropy_updated": _fault_if_nan(tokens.entropy).where(asked, torch.nan),
        "train/max_prob_updated": _fault_if_nan(tokens.max_prob).where(asked, torch.nan),
        "train/skipped_fraction": (~updated).float(),
        **_outside_by_length(rollouts, tokens, record),
    }


def _all_token_means(tokens: StepTokens) -> tuple[dict[str, float], int]:
    """Entropy and max-prob by log name, and how many of their values are not finite."""
    metric = AllTokenMeans().to(tokens.old_logprobs.device)
    metric.update(completion_totals(tokens), tokens.required, tokens.drawn)
    found = metric.compute()
    names = ("train/entropy", "train/max_prob")
    means = dict(zip(names, found.means.tolist(), strict=True))
    errors = {f"{name}_se": error for name, error in zip(names, found.standard_errors.tolist(), strict=True)}
    return means | errors, found.num_nonfinite


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


def _median(values: Tensor) -> float:
    """Over the tokens of all ranks."""
    metric = CatMetric(nan_strategy="disable").to(values.device)  # by default it leaves NaN out
    metric.update(values)
    found: Any = metric.compute()
    found = torch.as_tensor(found, dtype=torch.float32).flatten()
    return float(found.nanmedian()) if len(found) else math.nan


def log_name(metric: str) -> str:
    """The log name of a loss's metric: as it is with a namespace (`apo/…`), else under `train/…`.

    Example:
        >>> log_name("clip_fraction"), log_name("apo/anchor_ratio")
        ('train/clip_fraction', 'apo/anchor_ratio')
    """
    return metric if "/" in metric else f"train/{metric}"

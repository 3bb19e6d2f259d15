"""The metrics of a training step, reduced over its tokens, completions and ranks by torchmetrics."""

import math
import statistics
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor
from torchmetrics import CatMetric

from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.metrics.token_mean import means_of, pass_at_one_and_all
from apo_lightning.step.update_record import UpdateRecord
from apo_lightning.types import Rollouts, StepTokens

MEDIANS = frozenset({"apo/anchor_ratio"})
"""Log names of metrics that are reported as a median over tokens: ratios with a long tail."""


def step_metrics(rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord, ranks: Ranks) -> dict[str, float]:
    """The metrics of a step by log name, without times and rates; docs/metrics.md says what each is a mean of.

    Non-finite values are excluded from means and counted in `train/num_nonfinite`; a sum that includes one is NaN.
    Collective.
    """
    loss_metrics = {log_name(name): values for name, values in record.loss_metrics.items()}
    means = _completion_means(rollouts, tokens) | _token_means(rollouts, tokens, record)
    means |= {name: values for name, values in loss_metrics.items() if name not in MEDIANS}
    means["train/grad_norm"] = torch.tensor(record.grad_norms)
    result, num_infinite = means_of(means, tokens.old_logprobs.device)
    for name in MEDIANS & loss_metrics.keys():
        result[name] = _median(loss_metrics[name])
    sums = {f"reward/num_{status}": float(n) for status, n in rollouts.first_round.verdict_counts.items()}
    sums |= {"train/loss": record.mean_loss, "perf/num_preempted": float(rollouts.num_preempted)}
    result |= dict(zip(sums, ranks.sums(list(sums.values())), strict=True))
    result["train/num_nonfinite"] = float(num_infinite)
    result["train/num_empty_minibatches"] = float(record.num_empty)
    result["train/num_skipped_steps"] = float(record.num_nonfinite)
    return result


def _completion_means(rollouts: Rollouts, tokens: StepTokens) -> dict[str, Tensor]:
    """Over all completions of the step: those sampled first, and for advantages those selected."""
    owner, moves = tokens.sequence_ids, (tokens.advantages != 0).float()
    num_moving = moves.new_zeros(len(rollouts.completions)).index_add_(0, owner, moves)
    sampled = rollouts.first_round
    return {
        "train/reward": _fault_if_nan(sampled.rewards.flatten()),
        "train/completion_tokens": sampled.lengths.flatten().float(),
        "train/truncated_fraction": torch.tensor([float(c.finish_reason == "length") for c in sampled.completions]),
        "train/zero_advantage_fraction": (num_moving == 0).float(),
        **{f"train/pass@{k}": values for k, values in pass_at_one_and_all(sampled).items()},
    }


def _token_means(rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord) -> dict[str, Tensor]:
    """Over all tokens sampled first, and at the sampling policy over those that the update was run on.

    −log π(y) of a sampled token has the entropy as its expectation. With `old_logprobs: rollout` the policy is not run
    on the later mini-batches.
    """
    updated, sampled = record.updated, rollouts.first_round.completions
    asked = updated & tokens.is_scored
    logprobs = torch.tensor([value for completion in sampled for value in completion.logprobs])
    top_logprobs = torch.tensor([value for completion in sampled for value in completion.top_logprobs])
    return {
        "train/entropy": _fault_if_nan(-logprobs),
        "train/max_prob": _fault_if_nan(top_logprobs.exp()),
        "train/entropy_updated": _fault_if_nan(tokens.entropy).where(asked, torch.nan),
        "train/max_prob_updated": _fault_if_nan(tokens.max_prob).where(asked, torch.nan),
        "train/skipped_fraction": (~updated).float(),
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


def reward_metrics(rollouts: Rollouts) -> dict[str, float]:
    """Mean, std and number of None of each function over the completions of all ranks, by log name; collective.

    Ranks may log different names, and the sums are exact: the numbers do not depend on how completions are divided.
    """
    rewards: dict[str, list[float | None]] = defaultdict(list)
    logged: dict[str, list[float]] = defaultdict(list)
    own = [verdict.rewards for verdict in rollouts.verdicts if verdict.rewards]
    for rows, metrics in from_all_ranks((own, rollouts.reward_metrics)):
        for row in rows:
            for name, reward in row.items():
                rewards[name].append(reward)
        for name, values in metrics.items():
            logged[name] += values
    result = {f"reward/metric/{name}": statistics.fmean(values) for name, values in logged.items()}
    for name, of_function in rewards.items():
        given = [reward for reward in of_function if reward is not None]
        result[f"reward/{name}/mean"] = statistics.fmean(given) if given else math.nan
        result[f"reward/{name}/std"] = statistics.stdev(given) if len(given) > 1 else math.nan
        result[f"reward/{name}/num_none"] = float(len(of_function) - len(given))
    return result

"""The metrics of a training step, reduced over its tokens, completions and ranks by torchmetrics, and its speed."""

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import lightning.pytorch as pl
import torch
from jaxtyping import Float
from lightning.pytorch.utilities.rank_zero import rank_zero_info
from torch import Tensor
from torchmetrics import CatMetric, Metric

from apo_lightning.distributed.gathering import Ranks, from_all_ranks
from apo_lightning.metrics.functional import pass_at_k
from apo_lightning.model.flops import ModelSize, Work, peak_flops_per_second, training_flops
from apo_lightning.step.update_record import UpdateRecord
from apo_lightning.types import Rollouts, StepTokens


def step_metrics(
    rollouts: Rollouts, tokens: StepTokens, record: UpdateRecord, medians: frozenset[str], ranks: Ranks
) -> dict[str, float]:
    """The metrics of a step by log name, without times and rates; docs/metrics.md says what each is a mean of.

    `medians` are those of the loss's metrics that are reported as a median over tokens.

    Non-finite values are excluded from means and counted in `train/num_nonfinite`; a sum that includes one is NaN.
    Collective.
    """
    loss_metrics = {log_name(name): values for name, values in record.loss_metrics.items()}
    means = _completion_means(rollouts, tokens) | _token_means(rollouts, tokens, record)
    means |= {name: values for name, values in loss_metrics.items() if name not in medians}
    means["train/grad_norm"] = torch.tensor(record.grad_norms)
    result, num_infinite = means_of(means, tokens.old_logprobs.device)
    for name in medians & loss_metrics.keys():
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
        "train/truncated_fraction": sampled.is_truncated.flatten().float(),
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


class TokenMeans(Metric):
    """Means over finite values: NaN is where a number does not apply, and infinite values are counted as faults.

    All numbers share one state, so that a step has one reduction over ranks and one copy from a GPU.

    Args:
        num_numbers: how many means.

    Example:
        >>> metric = TokenMeans(2)
        >>> metric.update([torch.tensor([1.0, 2.0, torch.nan, torch.inf]), torch.tensor([3.0])])
        >>> [values.tolist() for values in metric.compute()]
        [[1.5, 3.0], [1.0, 0.0]]
    """

    is_differentiable = False
    full_state_update = False

    sums: Float[Tensor, "numbers 3"]
    """Σ of the finite values, their number, and that of infinite ones."""

    def __init__(self, num_numbers: int) -> None:
        super().__init__()
        self.add_state("sums", torch.zeros(num_numbers, 3, dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, columns: Sequence[Float[Tensor, "_"]]) -> None:
        """Add some tokens of each number; columns of one device next to one another are copied together."""
        rows = groupby((_sums(column.detach()) for column in columns), key=lambda row: row.device)
        self.sums += torch.cat([torch.stack(list(part)).to(self.sums.device) for _, part in rows])

    def compute(self) -> tuple[Float[Tensor, "numbers"], Float[Tensor, "numbers"]]:
        """The means so far over all ranks, NaN where no value is finite, and how many are infinite; on the CPU."""
        total, num_finite, num_infinite = self.sums.cpu().unbind(1)
        return total / num_finite, num_infinite


def means_of(columns: Mapping[str, Tensor], device: torch.device) -> tuple[dict[str, float], int]:
    """The mean of each column over all ranks, and how many of all values are infinite; collective."""
    names = sorted(columns, key=lambda name: columns[name].device.type)
    metric = TokenMeans(len(names)).to(device)
    metric.update([columns[name] for name in names])
    means, num_infinite = metric.compute()
    return dict(zip(names, means.view(-1).tolist(), strict=True)), int(num_infinite.sum())


def _sums(values: Float[Tensor, "tokens"]) -> Float[Tensor, "3"]:
    finite = values.isfinite()
    return torch.stack([values.double().where(finite, 0.0).sum(), finite.double().sum(), values.isinf().double().sum()])


def pass_at_one_and_all(rollouts: Rollouts) -> dict[int, Float[Tensor, "problems"]]:
    """pass@1 and pass@G of each problem, by k."""
    num_correct = rollouts.is_correct.sum(1)
    num_samples = torch.full_like(num_correct, rollouts.group_size)
    return {k: pass_at_k(num_samples, num_correct, k) for k in sorted({1, rollouts.group_size})}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What all ranks did in one step."""

    num_sampled: int
    """Response tokens."""
    update: Work
    """The forwards with a gradient."""
    max_rank_tokens: int
    """Positions that the update of the busiest rank ran through the backbone."""
    num_ranks: int
    """A rank has one device."""


def total_work(rollouts: Rollouts, work: Work, ranks: Ranks) -> StepWork:
    """Add up the sampled tokens and the work of all ranks; collective."""
    counts = ranks.sums([int(rollouts.lengths.sum()), work.num_tokens, work.num_pairs, work.num_rows])
    num_sampled, num_tokens, num_pairs, num_rows = map(int, counts)
    return StepWork(
        num_sampled=num_sampled if rollouts.rounds is None else rollouts.rounds.num_tokens,
        update=Work(num_tokens=num_tokens, num_pairs=num_pairs, num_rows=num_rows),
        max_rank_tokens=int(ranks.max(work.num_tokens)),
        num_ranks=ranks.world_size,
    )


def speed_metrics(
    work: StepWork, size: ModelSize, peak: float | None, timings: Mapping[str, float]
) -> dict[str, float]:
    """`perf/…` of one step by log name.

    `tokens_per_second`: sampled tokens over the whole step, on all devices and on one. `update_tokens_per_second`:
    positions through the backbone, prompts included, over the update; `rank_tokens_…`: the same positions by rank.
    `mfu`: model FLOPs utilisation of the update, in [0, 1]; left out where the `peak` of all devices together [FLOP/s]
    is not known.

    Example:
        >>> size = ModelSize(layer_weights=2, head_weights=0, attention_width=0)
        >>> work = StepWork(num_sampled=80, update=Work(num_tokens=50), max_rank_tokens=30, num_ranks=2)
        >>> for key, value in speed_metrics(work, size, 1e3, {"update": 2.0, "step": 10.0}).items():
        ...     print(key, value)
        perf/tokens_per_second 8.0
        perf/tokens_per_second_per_device 4.0
        perf/update_tokens_per_second 25.0
        perf/rank_tokens_mean 25.0
        perf/rank_tokens_max 30.0
        perf/mfu 0.3
    """
    num_tokens, sampled_rate = work.update.num_tokens, _rate(work.num_sampled, timings["step"])
    metrics = {
        "perf/tokens_per_second": sampled_rate,
        "perf/tokens_per_second_per_device": sampled_rate / work.num_ranks,
        "perf/update_tokens_per_second": _rate(num_tokens, timings["update"]),
        "perf/rank_tokens_mean": num_tokens / work.num_ranks,
        "perf/rank_tokens_max": float(work.max_rank_tokens),
    }
    if peak is not None:
        metrics["perf/mfu"] = _rate(training_flops(size, work.update), timings["update"]) / peak
    return metrics


def _rate(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else math.nan


def total_peak_flops(trainer: pl.Trainer) -> float | None:
    """The summed peak of all GPUs of a run [FLOP/s]; None on CPUs and, with a log message, on an unknown GPU."""
    device = trainer.strategy.root_device
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    peak = peak_flops_per_second(name)
    if peak is None:
        rank_zero_info(f"no perf/mfu: model/flops.py does not know the peak of {name}")
        return None
    return peak * trainer.world_size

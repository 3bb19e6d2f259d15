"""How fast a step was: tokens per second, tokens a rank, and the share of the GPUs' peak that the update reached."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.model.flops import ModelSize, Work, training_flops
from apo_lightning.types import Rollouts


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

"""How fast a step was: tokens per second, and the share of the GPUs' peak that the update reached."""

import math
from collections.abc import Mapping

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.model.flops import ModelSize, Work, training_flops
from apo_lightning.types import Rollouts


def total_work(rollouts: Rollouts, work: Work, ranks: Ranks) -> tuple[int, Work]:
    """Response tokens that all ranks sampled, and the work of all ranks; collective."""
    counts = ranks.sums([int(rollouts.lengths.sum()), work.num_tokens, work.num_pairs, work.num_rows])
    num_sampled, num_tokens, num_pairs, num_rows = map(int, counts)
    if rollouts.rounds is not None:
        num_sampled = rollouts.rounds.num_tokens
    return num_sampled, Work(num_tokens=num_tokens, num_pairs=num_pairs, num_rows=num_rows)


def speed_metrics(
    num_sampled: int, update: Work, size: ModelSize, peak: float | None, timings: Mapping[str, float]
) -> dict[str, float]:
    """`perf/…` of one step by log name, all ranks together.

    `tokens_per_second`: sampled tokens over the whole step. `update_tokens_per_second`: positions through the backbone,
    prompts included, over the update. `mfu`: model FLOPs utilisation of the update, in [0, 1]; left out where the
    `peak` of all devices together [FLOP/s] is not known. `update` is the work of forwards with a gradient.

    Example:
        >>> size = ModelSize(layer_weights=2, head_weights=0, attention_width=0)
        >>> speed_metrics(80, Work(num_tokens=50), size, 1e3, {"update": 2.0, "step": 10.0})
        {'perf/tokens_per_second': 8.0, 'perf/update_tokens_per_second': 25.0, 'perf/mfu': 0.3}
    """
    metrics = {
        "perf/tokens_per_second": _rate(num_sampled, timings["step"]),
        "perf/update_tokens_per_second": _rate(update.num_tokens, timings["update"]),
    }
    if peak is not None:
        metrics["perf/mfu"] = _rate(training_flops(size, update), timings["update"]) / peak
    return metrics


def _rate(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else math.nan

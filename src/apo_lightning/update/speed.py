"""How fast a step was: tokens per second, and the share of the GPUs' peak that the update reached."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.model.flops import ModelSize, Work, training_flops
from apo_lightning.types import Rollouts


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """The throughput of one step, all ranks together."""

    num_sampled: int
    """Response tokens that were sampled."""
    update: Work
    """Work of forwards with a gradient, without those that only keep the ranks in step."""
    update_flops: int = 0
    peak_flops_per_second: float | None = None
    """The peak of all devices together; None: unknown, and no `perf/mfu`."""

    @classmethod
    def of(cls, rollouts: Rollouts, work: Work, size: ModelSize, peak: float | None, ranks: Ranks) -> "Speed":
        """The throughput from the rollouts and the update's work on every rank; collective.

        Args:
            rollouts: of this rank.
            work: of this rank's update.
            size: of the policy.
            peak: of all devices together [FLOP/s]; None: unknown.
            ranks: all of them call this.
        """
        counts = ranks.sums([int(rollouts.lengths.sum()), work.num_tokens, work.num_pairs, work.num_rows])
        num_sampled, num_tokens, num_pairs, num_rows = map(int, counts)
        update = Work(num_tokens=num_tokens, num_pairs=num_pairs, num_rows=num_rows)
        flops = training_flops(size, update)
        return cls(num_sampled=num_sampled, update=update, update_flops=flops, peak_flops_per_second=peak)

    def metrics(self, timings: Mapping[str, float]) -> dict[str, float]:
        """`perf/…` by log name.

        `tokens_per_second`: sampled tokens over the whole step. `update_tokens_per_second`: positions through the
        backbone, prompts included, over the update. `mfu`: model FLOPs utilisation of the update, in [0, 1].

        Args:
            timings: seconds of each phase, and `step`.

        Example:
            >>> speed = Speed(num_sampled=80, update=Work(num_tokens=50), update_flops=600, peak_flops_per_second=1e3)
            >>> speed.metrics({"update": 2.0, "step": 10.0})
            {'perf/tokens_per_second': 8.0, 'perf/update_tokens_per_second': 25.0, 'perf/mfu': 0.3}
        """
        seconds = timings["update"]
        metrics = {
            "perf/tokens_per_second": _rate(self.num_sampled, timings["step"]),
            "perf/update_tokens_per_second": _rate(self.update.num_tokens, seconds),
        }
        if self.peak_flops_per_second is not None:
            metrics["perf/mfu"] = _rate(self.update_flops, seconds) / self.peak_flops_per_second
        return metrics


def _rate(amount: int, seconds: float) -> float:
    return amount / seconds if seconds > 0 else math.nan

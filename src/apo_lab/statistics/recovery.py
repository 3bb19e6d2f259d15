"""Which of the reference's alternatives were lost or recovered during training, and which of them rose."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.metrics.intervals import NUM_RESAMPLES, Interval

NEVER = 0
"""Step of an event that has not happened; steps count from 1."""
HYSTERESIS = 2.0
"""An alternative is recovered at twice the barrier; at the barrier itself rounding would lose and recover it."""
MATCHED_NATS = 0.5
"""The largest difference of reference log-probs between alternatives that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierEvents:
    """Events of each alternative at a barrier: it is expected b times over the run, and the barrier is b = 1."""

    at_risk: Bool[Tensor, "alternatives"]
    """b ≥ 1 before training; the others are unreachable from the start."""
    lost_at: Int[Tensor, "alternatives"]
    """Step of the first evaluation point with b < 1; `NEVER`: none yet, or not at risk."""
    recovered_at: Int[Tensor, "alternatives"]
    """Step of the first evaluation point after `lost_at` with b ≥ 2; `NEVER`: none yet."""

    @classmethod
    def before_training(cls, log_draws: Float[Tensor, "alternatives"]) -> "BarrierEvents":
        """No events yet; `log_draws` is log b before the first step [nats]."""
        nothing = torch.full(log_draws.shape, NEVER, dtype=torch.long)
        return cls(at_risk=log_draws >= 0, lost_at=nothing, recovered_at=nothing)

    def updated(self, log_draws: Float[Tensor, "alternatives"], step: int) -> "BarrierEvents":
        """The events with those of a later evaluation point, of log b [nats], dated to its step; NaN makes none."""
        back = (self.lost_at != NEVER) & (self.recovered_at == NEVER) & (log_draws >= math.log(HYSTERESIS))
        gone = self.at_risk & (self.lost_at == NEVER) & (log_draws < 0)
        return replace(
            self,
            lost_at=self.lost_at.masked_fill(gone, step),
            recovered_at=self.recovered_at.masked_fill(back, step),
        )


def ratio_interval(
    numerators: Float[Tensor, "prompts"],
    denominators: Float[Tensor, "prompts"],
    *,
    bounds: tuple[float, float] | None = None,
    resamples_at_once: int = NUM_RESAMPLES,
) -> Interval:
    """Σ n_i / Σ d_i with a 95 % interval over *prompts*, since the alternatives of one prompt are correlated.

    As `intervals.mean_intervals`, with half an unseen prompt of average size at either end: at the bounds, or, without
    bounds, as far from the ratio as the farthest prompt.

    Source: resampling of whole clusters, Davison and Hinkley 1997, "Bootstrap methods and their application", 3.8.

    Args:
        numerators: n_i of the prompts with d_i > 0.
        denominators: d_i > 0.
        bounds: the smallest and largest possible n_i/d_i; None: unbounded.
        resamples_at_once: bounds the memory, 8 bytes a resample and prompt.

    Returns:
        NaN without prompts; infinite ends if there are no bounds and all prompts agree.

    Example:
        >>> lost, at_risk = torch.tensor([0.0, 1.0, 4.0]), torch.tensor([2.0, 4.0, 4.0])
        >>> interval = ratio_interval(lost, at_risk, bounds=(0.0, 1.0))
        >>> interval.mean, interval.low < 0.3, interval.high > 0.8
        (0.5, True, True)
    """
    if len(numerators) == 0:
        return Interval(mean=math.nan, low=math.nan, high=math.nan)
    top, bottom = numerators.double(), denominators.double()
    ratio = float(top.sum() / bottom.sum())
    farthest = float((top / bottom - ratio).abs().max())
    lowest, highest = (ratio - farthest, ratio + farthest) if bounds is None else bounds
    if bounds is None and farthest == 0:
        return Interval(mean=ratio, low=-math.inf, high=math.inf)
    generator = torch.Generator().manual_seed(0)
    lows, highs = [], []
    for _ in range(0, NUM_RESAMPLES, resamples_at_once):
        weights = top.new_empty(resamples_at_once, len(top)).exponential_(generator=generator)
        # The square of a standard normal number, halved, has the distribution Gamma(1/2).
        unseen = torch.randn(resamples_at_once, dtype=torch.float64, generator=generator).square() / 2 * bottom.mean()
        total = weights @ bottom + unseen
        lows.append((weights @ top + unseen * lowest) / total)
        highs.append((weights @ top + unseen * highest) / total)
    return Interval(
        mean=ratio,
        low=min(ratio, float(torch.cat(lows).quantile(0.025))),
        high=max(ratio, float(torch.cat(highs).quantile(0.975))),
    )


def verdict_selectivity(
    change: Float[Tensor, "prefixes anchors"],
    ref_logprobs: Float[Tensor, "prefixes anchors"],
    success: Float[Tensor, "prefixes anchors"],
) -> Float[Tensor, "prefixes"]:
    """How much more the alternatives with right continuations rose than those without [nats].

        mean over pairs (i, j) of a prefix of Δx_i − Δx_j,   v̂_i > 0, v̂_j = 0, |log π_ref(i) − log π_ref(j)| ≤ 0.5

    This is the effect of reward: a pull does not depend on verdicts and raises wrong anchors like right ones. Errors of
    v̂ move the value towards 0 and do not change its sign.

    Args:
        change: Δx, the change of log π since before training; pairs with a value that is not finite are left out.
        ref_logprobs: log π_ref.
        success: v̂ in [0, 1]; NaN: not judged, in no pair.

    Returns:
        NaN for a prefix without pairs.

    Example:
        The reference makes the third alternative too rare to compare.

        >>> change, ref = torch.tensor([[0.3, 0.1, -2.0]]), torch.tensor([[0.4, 0.4, 0.01]]).log()
        >>> verdict_selectivity(change, ref, torch.tensor([[0.5, 0.0, 0.0]]))
        tensor([0.2000])
    """
    difference = change[:, :, None] - change[:, None, :]
    paired = (success > 0)[:, :, None] & (success == 0)[:, None, :] & difference.isfinite()
    paired &= (ref_logprobs[:, :, None] - ref_logprobs[:, None, :]).abs() <= MATCHED_NATS
    return difference.masked_fill(~paired, math.nan).flatten(1).nanmean(1)


def rank_selectivity(change: Float[Tensor, "prefixes alternatives"], anchor_size: int) -> Float[Tensor, "prefixes"]:
    """How much more the reference's K likeliest tokens rose than the next K [nats].

        mean of Δx over ranks 1 … K  −  mean of Δx over ranks K+1 … 2K

    This is the effect that a pull towards T_K can have. `change` is Δx by descending π_ref; a value that is not finite
    is left out, and a half without a finite one gives NaN.

    Example:
        >>> rank_selectivity(torch.tensor([[0.5, 0.3, -0.1, -0.1]]), 2)
        tensor([0.5000])
    """
    finite = change.masked_fill(~change.isfinite(), math.nan)
    return finite[:, :anchor_size].nanmean(1) - finite[:, anchor_size:].nanmean(1)

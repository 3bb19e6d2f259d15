"""What became of the reference's alternatives during training: lost, recovered, and which of them rose."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.metrics.intervals import NUM_RESAMPLES, Interval

NEVER = 0
"""The step of an event that has not happened; steps count from 1."""
HYSTERESIS = 2.0
"""An alternative is recovered at twice the barrier: at the barrier itself rounding alone would lose and recover it."""
MATCHED_NATS = 0.5
"""Alternatives are compared whose reference log-probs differ by no more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BarrierEvents:
    """What each alternative did at a barrier: b expected draws over the run, and the barrier is one draw."""

    at_risk: Bool[Tensor, "alternatives"]
    """b ≥ 1 before training. The others were unreachable from the start."""
    lost_at: Int[Tensor, "alternatives"]
    """Step of the first look with b < 1; `NEVER`: not yet, or not at risk."""
    recovered_at: Int[Tensor, "alternatives"]
    """Step of the first look after `lost_at` with b ≥ 2; `NEVER`: not yet."""

    @classmethod
    def before_training(cls, log_draws: Float[Tensor, "alternatives"]) -> "BarrierEvents":
        """Nothing has happened.

        Args:
            log_draws: log b before the first step [nats].
        """
        nothing = torch.full(log_draws.shape, NEVER, dtype=torch.long)
        return cls(at_risk=log_draws >= 0, lost_at=nothing, recovered_at=nothing.clone())

    def after_look(self, log_draws: Float[Tensor, "alternatives"], step: int) -> "BarrierEvents":
        """The events, with those that a look at this step sees. An event dates to the look, not to the step before it.

        Args:
            log_draws: log b now [nats]; NaN brings no event.
            step: of the look; above that of the look before.

        Example:
            Below the barrier, back above it, and only then at twice the barrier.

            >>> events = BarrierEvents.before_training(torch.tensor([3.0]).log())
            >>> for step, draws in ((5, 0.9), (10, 1.5), (15, 2.5)):
            ...     events = events.after_look(torch.tensor([draws]).log(), step)
            ...     print(events.lost_at.item(), events.recovered_at.item())
            5 0
            5 0
            5 15
        """
        back = (self.lost_at != NEVER) & (self.recovered_at == NEVER) & (log_draws >= math.log(HYSTERESIS))
        gone = self.at_risk & (self.lost_at == NEVER) & (log_draws < 0)
        return replace(
            self,
            lost_at=self.lost_at.masked_fill(gone, step),
            recovered_at=self.recovered_at.masked_fill(back, step),
        )


def survival_curve(
    lost_at: Int[Tensor, "alternatives"], weights: Float[Tensor, "alternatives"]
) -> tuple[list[int], list[float]]:
    """Steps at which something was lost, and the share that was never lost up to each.

        S(t) = Π_{t_i ≤ t} (1 − d_i/n_i)

    d_i is the weight lost at t_i and n_i the weight not lost before. Nothing is censored but by the end of the run, so
    S is 1 minus the empirical distribution function.

    Source: Kaplan and Meier 1958.

    Args:
        lost_at: of the alternatives at risk, `NEVER` for those that still live.
        weights: above 0.

    Returns:
        Steps, ascending, and S in [0, 1] there; before the first it is 1.

    Example:
        >>> survival_curve(torch.tensor([5, 0, 10, 5]), torch.ones(4))
        ([5, 10], [0.5, 0.25])
    """
    steps = sorted({step for step in lost_at.tolist() if step != NEVER})
    alive, share, shares = weights.double().sum(), 1.0, []
    for step in steps:
        lost = weights.double()[lost_at == step].sum()
        share *= 1 - float(lost / alive)
        alive = alive - lost
        shares.append(share)
    return steps, shares


def ratio_interval(
    numerators: Float[Tensor, "prompts"],
    denominators: Float[Tensor, "prompts"],
    *,
    bounds: tuple[float, float] | None = None,
    confidence: float = 0.95,
) -> Interval:
    """Σ n_i / Σ d_i with an interval over *prompts*: the alternatives of one stand and fall together.

    As `intervals.mean_intervals`, with half an unseen prompt of average size at either end: at the bounds, or, of a
    value without bounds, as far from the ratio as the farthest prompt.

    Source: of resampling whole clusters, Davison and Hinkley 1997, "Bootstrap methods and their application", 3.8.

    Args:
        numerators: n_i, of the prompts that have something to count.
        denominators: d_i > 0.
        bounds: the least and the most that n_i/d_i can be; None: any number.
        confidence: in (0, 1).

    Returns:
        NaN without prompts; infinite ends where there are no bounds and all prompts agree.

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
    weights = top.new_empty(NUM_RESAMPLES, len(top)).exponential_(generator=generator)
    # The square of a standard normal number, halved, has the distribution Gamma(1/2).
    unseen = torch.randn(NUM_RESAMPLES, dtype=torch.float64, generator=generator).square() / 2 * bottom.mean()
    total = weights @ bottom + unseen
    tail = (1 - confidence) / 2
    return Interval(
        mean=ratio,
        low=min(ratio, float(((weights @ top + unseen * lowest) / total).quantile(tail))),
        high=max(ratio, float(((weights @ top + unseen * highest) / total).quantile(1 - tail))),
    )


def verdict_selectivity(
    change: Float[Tensor, "prefixes anchors"],
    ref_logprobs: Float[Tensor, "prefixes anchors"],
    success: Float[Tensor, "prefixes anchors"],
) -> Float[Tensor, "prefixes"]:
    """By how much more the alternatives rose that can end right than those that do not [nats].

        mean over pairs (i, j) of a prefix of Δx_i − Δx_j,   v̂_i > 0, v̂_j = 0, |log π_ref(i) − log π_ref(j)| ≤ 0.5

    What reward does. A pull does not see verdicts, and lifts wrong anchors like right ones. Errors of v̂ bring the value
    nearer to 0 and do not turn its sign.

    Args:
        change: Δx, of log π since before training; pairs of a value that is not finite are left out.
        ref_logprobs: log π_ref.
        success: v̂ in [0, 1]; NaN: not judged, in no pair.

    Returns:
        NaN where a prefix has no pair.

    Example:
        The third alternative is too rare to be compared.

        >>> change, ref = torch.tensor([[0.3, 0.1, -2.0]]), torch.tensor([[0.4, 0.4, 0.01]]).log()
        >>> verdict_selectivity(change, ref, torch.tensor([[0.5, 0.0, 0.0]]))
        tensor([0.2000])
    """
    difference = change[:, :, None] - change[:, None, :]
    paired = (success > 0)[:, :, None] & (success == 0)[:, None, :] & difference.isfinite()
    paired &= (ref_logprobs[:, :, None] - ref_logprobs[:, None, :]).abs() <= MATCHED_NATS
    return _mean_where(difference.flatten(1), paired.flatten(1))


def rank_selectivity(change: Float[Tensor, "prefixes alternatives"], anchor_size: int) -> Float[Tensor, "prefixes"]:
    """By how much more the reference's K likeliest tokens rose than the K next [nats].

        mean of Δx over ranks 1 … K  −  mean of Δx over ranks K+1 … 2K

    What a pull towards T_K could do.

    Args:
        change: Δx, by descending π_ref; a value that is not finite is left out.
        anchor_size: K.

    Returns:
        NaN where either half has no finite value.

    Example:
        >>> rank_selectivity(torch.tensor([[0.5, 0.3, -0.1, -0.1]]), 2)
        tensor([0.5000])
    """
    inside, outside = change[:, :anchor_size], change[:, anchor_size:]
    return _mean_where(inside, inside.isfinite()) - _mean_where(outside, outside.isfinite())


def _mean_where(
    values: Float[Tensor, "prefixes columns"], counted: Bool[Tensor, "prefixes columns"]
) -> Float[Tensor, "prefixes"]:
    return values.masked_fill(~counted, 0.0).sum(1) / counted.sum(1)

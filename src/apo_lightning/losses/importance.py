"""Importance weights for an engine whose probabilities differ slightly from the trainer's."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.aggregation import sequence_totals
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, Number

BOUNDS: dict[str, tuple[Number, ...]] = {
    "token_truncate": (2.0,),
    "token_mask": (0.5, 5.0),
    "sequence_truncate": (2.0,),
    "sequence_mask": (3.0,),
    "sequence_gate": (0.5, 2.0),
}
"""By mode, its published bounds: C, or lo and hi."""
SEQUENCE_MODES = frozenset(mode for mode in BOUNDS if mode.startswith("sequence"))
"""Modes whose weights depend on the whole completion."""


class ImportanceWeights(NamedTuple):
    """The result of `importance_weights`."""

    weights: Float[Tensor, "tokens"]
    """≥ 0, constant."""
    is_outside: Bool[Tensor, "tokens"]
    """Tokens beyond the bounds, whose weight is truncated or 0."""


def importance_weights(
    old_logprobs: Float[Tensor, "tokens"],
    rollout_logprobs: Float[Tensor, "tokens"],
    sequence_ids: Int[Tensor, "tokens"],
    mode: str,
    bounds: Number | Sequence[Number] | None = None,
) -> ImportanceWeights:
    """The weights of the tokens' objectives, from the policy's and the engine's log-probs.

        ρ_t = exp(clamp(log π_old − log π_rollout, −20, 20)),   u = Π_t ρ_t over the completion,   ḡ = u^(1/length)

        token_truncate      min(ρ_t, C)
        token_mask          ρ_t where lo ≤ ρ_t ≤ hi, else 0
        sequence_truncate   min(u, C)
        sequence_mask       u where u ≤ C, else 0
        sequence_gate       ρ_t where lo ≤ ḡ ≤ hi, else 0

    Weights of tokens correct a token's distribution and not that of its prefix. The product u corrects both, but its
    spread grows with the length, so `sequence_mask` drops long completions first.

    Source: `token_truncate`, Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training";
    `token_mask`, Ling Team 2025 (IcePop); the modes of completions and all bounds, verl, TRL and OpenRLHF.

    Departure: log u is clamped to ±20 as well, so that no product overflows.

    Args:
        old_logprobs: log π_old(y) [nats] of the trainer.
        rollout_logprobs: log π_rollout(y) [nats] of the engine.
        sequence_ids: which completion a token belongs to, ascending; the modes of completions need whole ones.
        mode: one of `BOUNDS`.
        bounds: C, or [lo, hi]; None: those of `BOUNDS`.

    Raises:
        ConfigError: mode or bounds cannot be.

    Example:
        >>> import torch
        >>> old, rollout = torch.tensor([0.1, 0.9, 0.1]).log(), torch.tensor([0.1, 0.1, 0.4]).log()
        >>> importance_weights(old, rollout, torch.zeros(3).long(), "token_truncate").weights
        tensor([1.0000, 2.0000, 0.2500])
        >>> importance_weights(old, rollout, torch.zeros(3).long(), "sequence_mask").weights
        tensor([2.2500, 2.2500, 2.2500])
    """
    low, high = checked_bounds(mode, bounds)
    log_ratio = (old_logprobs - rollout_logprobs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    value = compared = log_ratio.exp()
    if mode in SEQUENCE_MODES:
        totals, lengths = sequence_totals(log_ratio, sequence_ids)
        if mode == "sequence_gate":
            compared = (totals / lengths).exp()
        else:
            value = compared = totals.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    is_outside = (compared < low) | (compared > high)
    # A product, so that a weight that is NaN stays one.
    weights = value.clamp(max=high) if mode.endswith("truncate") else value * ~is_outside
    return ImportanceWeights(weights.to(log_ratio.dtype), is_outside)


def checked_bounds(mode: str, bounds: Any = None) -> tuple[Number, Number]:
    """The lower and the upper bound of a mode; 0 where it has no lower one.

    Raises:
        ConfigError: the mode is unknown, or its bounds are not what it takes.

    Example:
        >>> checked_bounds("token_truncate"), checked_bounds("token_mask", [0.8, 1.25])
        ((0.0, 2.0), (0.8, 1.25))
    """
    if mode not in BOUNDS:
        raise ConfigError(f"importance is {mode!r}: choose one of {', '.join(BOUNDS)}, or null for no correction")
    default = BOUNDS[mode]
    given = default if bounds is None else tuple(bounds) if isinstance(bounds, Sequence) else (bounds,)
    if len(given) == len(default) and all(isinstance(bound, float | int) for bound in given):
        low, high = (0.0, *given)[-2:]
        if 0 <= low < high:
            return low, high
    wanted = f"a number above 0, such as {default[0]}" if len(default) == 1 else f"[lo, hi], such as {list(default)}"
    raise ConfigError(f"importance_bounds is {bounds} with importance={mode}: give {wanted}, or null for the published")

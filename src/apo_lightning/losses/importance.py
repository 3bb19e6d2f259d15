"""Importance weights for an engine whose probabilities differ slightly from the trainer's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.aggregation import sequence_means, sequence_totals
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, Number
from apo_lightning.types import LossInputs

BOUNDS: dict[str, tuple[Number, ...]] = {
    "token_truncate": (2.0,),
    "token_mask": (0.5, 5.0),
    "sequence_truncate": (2.0,),
    "sequence_mask": (3.0,),
    "sequence_gate": (0.5, 2.0),
}
"""By mode, its published bounds: C, or lo and hi."""


@dataclass(frozen=True)
class Importance:
    """Constant weights of the tokens' objectives, which leave all denominators as they are.

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

    Attributes:
        mode: one of `BOUNDS`.
        bounds: C, or [lo, hi]; None: those of `BOUNDS`.

    Raises:
        ConfigError: the mode is unknown, or the bounds are not of this mode.

    Example:
        >>> import torch
        >>> old, rollout = torch.tensor([0.1, 0.9, 0.1]).log(), torch.tensor([0.1, 0.1, 0.4]).log()
        >>> Importance("token_truncate").weights(old, rollout, torch.zeros(3).long())
        (tensor([1.0000, 2.0000, 0.2500]), tensor([False,  True, False]))
    """

    mode: Any
    bounds: Any = None

    NAMES: ClassVar[tuple[str, str]] = ("importance_weight", "importance_outside_fraction")
    """Columns and metrics: the weight, and 1 where the bounds act, 0 elsewhere."""

    def __post_init__(self) -> None:
        if self.mode not in BOUNDS:
            chosen = f"{self.mode} (bounds {self.bounds})"
            raise ConfigError(f"importance is {chosen}: choose one of {', '.join(BOUNDS)}, or both null")
        default, are_numbers = BOUNDS[self.mode], all(isinstance(bound, float | int) for bound in self._given)
        if not are_numbers or len(self._given) != len(default) or not 0 <= self._limits[0] < self._limits[1]:
            wanted = (
                f"[lo, hi], such as {list(default)}" if len(default) == 2 else f"a number above 0, such as {default[0]}"
            )
            raise ConfigError(
                f"importance_bounds is {self.bounds} with importance={self.mode}: give {wanted}, or null for the "
                "published"
            )

    @property
    def reads_completions(self) -> bool:
        """Whether a weight depends on the whole completion."""
        return self.mode.startswith("sequence")

    def columns(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """Both `NAMES` for each token."""
        assert inputs.rollout_logprobs is not None
        weights, is_outside = self.weights(inputs.old_logprobs, inputs.rollout_logprobs, inputs.sequence_ids)
        return dict(zip(self.NAMES, (weights, is_outside.float()), strict=True))

    def weights(
        self,
        old_logprobs: Float[Tensor, "tokens"],
        rollout_logprobs: Float[Tensor, "tokens"],
        sequence_ids: Int[Tensor, "tokens"],
    ) -> tuple[Float[Tensor, "tokens"], Bool[Tensor, "tokens"]]:
        """The weights, and where the bounds truncate them or make them 0.

        Args:
            old_logprobs: log π_old(y) [nats] of the trainer.
            rollout_logprobs: log π_rollout(y) [nats] of the engine.
            sequence_ids: which completion a token belongs to, ascending; the modes of completions need whole ones.
        """
        low, high = self._limits
        log_ratio = (old_logprobs - rollout_logprobs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        value = compared = log_ratio.exp()
        if self.mode == "sequence_gate":
            compared = sequence_means(log_ratio, sequence_ids).exp()
        elif self.reads_completions:
            totals, _ = sequence_totals(log_ratio, sequence_ids)
            value = compared = totals.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        is_outside = (compared < low) | (compared > high)
        # A product, so that a weight that is NaN stays one.
        weights = value.clamp(max=high) if self.mode.endswith("truncate") else value * ~is_outside
        return weights.to(log_ratio.dtype), is_outside

    @property
    def _given(self) -> tuple[Any, ...]:
        bounds = BOUNDS[self.mode] if self.bounds is None else self.bounds
        return tuple(bounds) if isinstance(bounds, Sequence) else (bounds,)

    @property
    def _limits(self) -> tuple[Number, Number]:
        """The lower bound, 0 where the mode has none, and the upper one."""
        low, high = (0.0, *self._given)[-2:]
        return low, high

"""The base of every policy loss: a clipped surrogate, importance weights and an entropy bonus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.contracts import Loss, Recipe
from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import (
    LOG_RATIO_LIMIT,
    Number,
    clipped_objective,
    is_clipped,
    sequence_means,
    sequence_totals,
)
from apo_lightning.types import LossInputs, LossOutput, Needs

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


T = TypeVar("T")
DUAL_CLIP = "such as 3, or null for none; at 1 or below no token of negative advantage could learn"


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(Checked, Loss):
    """A loss with a clipped surrogate, importance weights and an entropy bonus.

    A new loss is a frozen dataclass with `needs`, the declaration of what it reads, and `__call__`.

    `surrogate` gives the metric `clip_fraction`: 1 where a token of A ≠ 0 has no surrogate gradient, 0 where it has,
    NaN where A = 0.

    Attributes:
        clip_eps: ε_low, and ε_high where `clip_eps_high` is None; in (0, 1], where 1 means no lower clip.
        clip_eps_high: ε_high > 0, for a wider upper side; None: symmetric.
        dual_clip: c > 1 bounds the loss of a token of A < 0 by c·|A|; None: the equation as printed.
        entropy_coef: the loss falls by this much per nat of entropy; 0: entropy is not computed.
        importance: corrects the objective for an engine whose probabilities differ from the trainer's; None: off. Set
            by the key `importance` of a run.

    Raises:
        ConfigError: a value outside its range.
    """

    clip_eps: Annotated[Number, Within("(0, 1]", "such as 0.2")] = 0.2
    clip_eps_high: Annotated[Number | None, Within("(0, inf]", "or null for clip_eps")] = None
    dual_clip: Annotated[Number | None, Within("(1, inf]", DUAL_CLIP)] = None
    entropy_coef: Annotated[Number, Within("(-inf, inf)")] = 0.0
    importance: Importance | None = None

    @property
    def needs(self) -> Needs:
        """What the loss reads beyond the log-probs of the sampled tokens, and where it can have a gradient."""
        completions = self.importance is not None and self.importance.reads_completions
        return Needs(entropy=self.entropy_coef != 0, completions=completions)

    @property
    def surrogate_tokens(self) -> str:
        """The `gradient_on` of a loss that is `surrogate`: A ≠ 0, or all tokens with an entropy bonus."""
        return "nonzero_advantage" if self.entropy_coef == 0 else "all"

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError`, before the run, where the loss cannot work in it.

        Its estimator may say in `spares_errors` that no wrong completion gets A < 0, and in `punishes_correct` that
        correct ones may.
        """

    def completion_columns(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """The importance weights, where they depend on whole completions."""
        return {} if self.importance is None else self.importance.columns(inputs)

    @property
    def support_size(self) -> int:
        """K, the size of what diagnostics call the support under this loss; 0 for a loss without anchors."""
        return self.needs.anchor_size

    @property
    def _clip(self) -> dict[str, Any]:
        return {"clip_eps": self.clip_eps, "clip_eps_high": self.clip_eps_high, "dual_clip": self.dual_clip}

    def is_flat(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        """Tokens on which the clipped objective has no gradient."""
        return is_clipped(ratio, advantages, **self._clip)

    def surrogate(self, inputs: LossInputs, ratio: Tensor, frozen: Tensor, metrics: Mapping[str, Tensor]) -> LossOutput:
        """Minus the clipped objective of `ratio`, ρ, minus the entropy bonus; see `from_objective`.

        `frozen` says where ρ itself has no gradient, because its log is clamped; `metrics` are the loss's own.
        """
        objective = clipped_objective(ratio, inputs.advantages, **self._clip)
        no_gradient = self.is_flat(ratio, inputs.advantages) | frozen
        return self.from_objective(inputs, objective, no_gradient, metrics)

    def from_objective(
        self, inputs: LossInputs, objective: Tensor, no_gradient: Tensor, metrics: Mapping[str, Tensor]
    ) -> LossOutput:
        """Minus an objective, which is to be maximised, minus the entropy bonus.

        Importance weights correct the objective alone: entropy and penalties are no expectations over old samples.
        `clip_fraction` counts tokens on which it is flat, `no_gradient`.
        """
        corrections = self.corrections(inputs)
        if corrections:
            objective = corrections["importance_weight"] * objective
        loss = -objective
        if self.entropy_coef != 0:
            loss = loss - self.entropy_coef * required(inputs.entropy, "entropy")
        clip_fraction = applicable(no_gradient.to(loss.dtype), inputs.advantages != 0)
        return LossOutput(per_token=loss, metrics={"clip_fraction": clip_fraction, **metrics, **corrections})

    def corrections(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """The importance weights, and where their bounds act; empty without a correction."""
        if self.importance is None:
            return {}
        if self.importance.reads_completions:
            return {name: inputs.columns[name] for name in self.importance.NAMES}
        return self.importance.columns(inputs)


def applicable(values: Float[Tensor, "tokens"], where: Bool[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """A metric: detached, NaN where it does not apply.

    Example:
        >>> applicable(torch.tensor([1.0, 2.0]), torch.tensor([True, False]))
        tensor([1., nan])
    """
    return torch.where(where, values.detach(), torch.nan)


def required(value: T | None, name: str) -> T:
    """An input that `needs` declared.

    Raises:
        ValueError: it is missing.
    """
    if value is None:
        raise ValueError(f"LossInputs.{name} is None, but the loss's `needs` asks for it")
    return value

"""What every policy loss has: a clipped surrogate, an optional entropy bonus, and a declaration of what it reads."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import Number, clipped_objective, is_clipped
from apo_lightning.types import LossInputs, LossOutput, Needs

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(ABC):
    """A loss per token: `loss(inputs)` is to be minimised, after one weight per token and a sum.

    Calling it yields, besides the loss, `clip_fraction`: 1 where a token of A ≠ 0 has no surrogate gradient, 0 where it
    has, NaN where A = 0.

    Attributes:
        clip_eps: ε_low, and ε_high where `clip_eps_high` is None; in (0, 1).
        clip_eps_high: ε_high > 0, for a wider upper side; None: symmetric.
        dual_clip: c > 1 bounds the loss of a token of A < 0 by c·|A|; None: the equation as printed.
        entropy_coef: the loss falls by this much per nat of entropy; 0: entropy is not computed.

    Raises:
        ConfigError: a value outside its range.
    """

    clip_eps: Number = 0.2
    clip_eps_high: Number | None = None
    dual_clip: Number | None = None
    entropy_coef: Number = 0.0

    _mask_given_up: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        if not 0 < self.clip_eps < 1:
            raise ConfigError(f"clip_eps is {self.clip_eps}: give a value between 0 and 1, such as 0.2")
        if self.clip_eps_high is not None and not self.clip_eps_high > 0:
            raise ConfigError(f"clip_eps_high is {self.clip_eps_high}: give a positive value, or null for clip_eps")
        if self.dual_clip is not None and not self.dual_clip > 1:
            raise ConfigError(
                f"dual_clip is {self.dual_clip}: at 1 or below no token of negative advantage could learn; "
                "give a value above 1, such as 3, or null for none"
            )
        if not abs(self.entropy_coef) < float("inf"):
            raise ConfigError(f"entropy_coef is {self.entropy_coef}: give a finite number")

    @property
    def needs(self) -> Needs:
        """The tensors that the loss reads beyond the log-probs of the sampled tokens."""
        return Needs(entropy=self.entropy_coef != 0)

    @property
    def support_size(self) -> int:
        """K, the size of what diagnostics call the support under this loss; 0 for a loss without anchors."""
        return self.needs.anchor_size

    @property
    def metric_defaults(self) -> Mapping[str, float]:
        """Metric name → its value on tokens that the update does not run: so it is a mean over all response tokens.

        A metric that is not named here is a mean over the tokens of the update to which it applies.
        """
        return {}

    def reference_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens on which it reads the reference, of which the others are spared: what is read there is 0.

        Here all tokens where `needs` names something of the reference, which is never wrong, and none where it does
        not; a loss that knows better narrows it.
        """
        return torch.full_like(is_correct, self.needs.reference_statistics)

    def gradient_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens whose loss can have a gradient; the update does not run a completion that has none.

        Such a completion's tokens stay in every denominator. Here all tokens, which is never wrong; a loss that knows
        better narrows it. A subclass that redefines `__call__` and not this is back at all tokens, and `notice` says
        so: what it calls by `super()` cannot be told from what it adds. Where the mask still holds it is taken over by
        name.

        Example:
            >>> class Halved(PolicyLoss):
            ...     gradient_mask = PolicyLoss.gradient_mask
            ...
            ...     def __call__(self, inputs):
            ...         return self._surrogate(inputs, 0.5 * torch.ones(1), torch.zeros(1).bool(), {})
            >>> Halved().gradient_mask(torch.zeros(1), torch.tensor([True]))
            tensor([True])
        """
        return torch.ones_like(is_correct)

    @property
    def notice(self) -> str | None:
        """One line on a `gradient_mask` that a redefined `__call__` has cost; None: there is nothing to say."""
        if self._mask_given_up is None:
            return None
        return (
            f"{type(self).__name__} redefines __call__ and not gradient_mask: every completion is run, those without a "
            f"gradient too; if {self._mask_given_up} still holds, write `gradient_mask = {self._mask_given_up}` in it"
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "gradient_mask" in cls.__dict__:
            cls._mask_given_up = None
            return
        # An inherited mask knows nothing of the terms that a newer `__call__` adds: they would go untrained, unnoticed.
        newest = next(base for base in cls.__mro__ if {"__call__", "gradient_mask"} & base.__dict__.keys())
        if "gradient_mask" in newest.__dict__:
            return
        if cls.gradient_mask is not PolicyLoss.gradient_mask:
            cls._mask_given_up = cls.gradient_mask.__qualname__
        cls.gradient_mask = PolicyLoss.gradient_mask

    @abstractmethod
    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Loss and metrics of some tokens; no token's loss depends on another token."""

    def _has_surrogate_gradient(self, advantages: Float[Tensor, "tokens"]) -> Bool[Tensor, "tokens"]:
        """Tokens where `_surrogate` can have a gradient: A ≠ 0, or any with an entropy bonus."""
        return advantages != 0 if self.entropy_coef == 0 else torch.ones_like(advantages, dtype=torch.bool)

    def _is_flat(self, ratio: Tensor, advantages: Tensor) -> Tensor:
        return is_clipped(
            ratio,
            advantages,
            clip_eps=self.clip_eps,
            clip_eps_high=self.clip_eps_high,
            dual_clip=self.dual_clip,
        )

    def _surrogate(
        self, inputs: LossInputs, ratio: Tensor, frozen: Tensor, metrics: Mapping[str, Tensor]
    ) -> LossOutput:
        """Minus the clipped objective of `ratio`, minus the entropy bonus.

        Importance weights correct the objective alone: entropy and penalties are no expectations over old samples.

        Args:
            inputs: of the loss.
            ratio: ρ.
            frozen: where ρ itself has no gradient, because its log was clamped.
            metrics: the loss's own.
        """
        objective = clipped_objective(
            ratio,
            inputs.advantages,
            clip_eps=self.clip_eps,
            clip_eps_high=self.clip_eps_high,
            dual_clip=self.dual_clip,
        )
        if inputs.importance_weights is not None:
            objective = inputs.importance_weights.detach() * objective
        loss = -objective
        if self.entropy_coef != 0:
            loss = loss - self.entropy_coef * required(inputs.entropy, "entropy")
        no_gradient = self._is_flat(ratio, inputs.advantages) | frozen
        clip_fraction = applicable(no_gradient.to(loss.dtype), inputs.advantages != 0)
        return LossOutput(per_token=loss, metrics={"clip_fraction": clip_fraction, **metrics})


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

"""The base of every policy loss: what it reads, a clipped surrogate and an optional entropy bonus."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import Number, clipped_objective, is_clipped
from apo_lightning.losses.minibatch_tokens import MinibatchTokens
from apo_lightning.types import LossInputs, LossOutput, Needs

T = TypeVar("T")

MASKS = ("gradient_mask", "reference_mask")


@dataclass(frozen=True, kw_only=True)
class PolicyLoss(ABC):
    """A loss per token: `loss(inputs)` is minimised, after one weight per token and a sum.

    A new loss is a frozen dataclass with `needs`, the declaration of what it reads, and `__call__`. To save work it may
    also state `gradient_mask` and `reference_mask`, in the class that defines `__call__`.

    `surrogate` gives the metric `clip_fraction`: 1 where a token of A ≠ 0 has no surrogate gradient, 0 where it has,
    NaN where A = 0.

    Attributes:
        clip_eps: ε_low, and ε_high where `clip_eps_high` is None; in (0, 1], where 1 means no lower clip.
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

    def __post_init__(self) -> None:
        if not 0 < self.clip_eps <= 1:
            raise ConfigError(f"clip_eps is {self.clip_eps}: give a value above 0 and at most 1, such as 0.2")
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

    def check(self, *, aggregation: str, minibatches_per_step: int, advantage: object) -> None:
        """Raise `ConfigError`, before the run, where the loss cannot work in such a step.

        Args:
            aggregation: of token losses; see `losses.aggregation`.
            minibatches_per_step: optimizer steps a rollout.
            advantage: the estimator; it may say in `spares_errors` that no wrong completion gets A < 0, and in
                `punishes_correct` that correct ones may.
        """
        return

    @abstractmethod
    def __call__(self, inputs: LossInputs) -> LossOutput:
        """Loss and metrics of some tokens; no token's loss depends on another token."""

    def gradient_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens whose loss can have a gradient: all, unless a loss states less.

        The update does not run a completion without such a token; its tokens stay in every denominator. A class states
        the mask for its own `__call__`: see `masks_of`.
        """
        return torch.ones_like(is_correct)

    def reference_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens on which the loss reads the reference: all where `needs` names it, unless a loss states less.

        On the other tokens `ref_logprobs` and `full_kl` are 0 and anchors are absent.
        """
        return torch.full_like(is_correct, self.needs.reference)

    def marks(self, tokens: MinibatchTokens) -> Float[Tensor, "tokens"]:
        """A value for each token of a mini-batch that depends on the others; it comes back as `LossInputs.marks`.

        Called once a mini-batch, before the update, where `needs.marks`.
        """
        raise NotImplementedError(f"{type(self).__name__}.needs asks for marks, and the class has no `marks`")

    def sequence_values(
        self,
        log_ratio: Float[Tensor, "tokens"],
        entropy: Float[Tensor, "tokens"],
        advantages: Float[Tensor, "tokens"],
        sequence_ids: Int[Tensor, "tokens"],
    ) -> Float[Tensor, "tokens"]:
        """A value for each token of whole completions; it comes back as `LossInputs.sequence_values`.

        Called with every micro-batch, at the current policy and without a gradient, where `needs.sequence_values`.

        Args:
            log_ratio: log π(y) − log π_old(y) [nats].
            entropy: of the policy [nats], if `needs.entropy`; otherwise of no meaning.
            advantages: A.
            sequence_ids: which completion; its tokens are adjacent.
        """
        raise NotImplementedError(f"{type(self).__name__}.needs asks for sequence_values, and the class has none")

    @property
    def support_size(self) -> int:
        """K, the size of what diagnostics call the support under this loss; 0 for a loss without anchors."""
        return self.needs.anchor_size

    @property
    def metric_defaults(self) -> Mapping[str, float]:
        """Metric name → its value on tokens that the update does not run, for a mean over all response tokens.

        A metric that is not named here is a mean over the tokens of the update to which it applies.
        """
        return {}

    @property
    def notice(self) -> str | None:
        """One line on inherited masks that are not used; None: there are none."""
        inherited = {
            name: next(owner for owner in type(self).__mro__ if name in owner.__dict__)
            for name in MASKS
            if not _is_stated(self, name)
        }
        unused = {name: owner for name, owner in inherited.items() if owner is not PolicyLoss}
        if not unused:
            return None
        lines = ", ".join(f"`{name} = {owner.__name__}.{name}`" for name, owner in unused.items())
        return (
            f"{type(self).__name__} redefines __call__ and not {' and '.join(unused)}: all tokens are run in full, "
            f"those without a gradient too; where the inherited mask still holds, write {lines} in the class"
        )

    def surrogate_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """A `gradient_mask`: tokens where `surrogate` can have a gradient, A ≠ 0, or all with an entropy bonus."""
        return advantages != 0 if self.entropy_coef == 0 else torch.ones_like(is_correct)

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
        if inputs.importance_weights is not None:
            objective = inputs.importance_weights.detach() * objective
        loss = -objective
        if self.entropy_coef != 0:
            loss = loss - self.entropy_coef * required(inputs.entropy, "entropy")
        clip_fraction = applicable(no_gradient.to(loss.dtype), inputs.advantages != 0)
        return LossOutput(per_token=loss, metrics={"clip_fraction": clip_fraction, **metrics})


class TokenMasks(NamedTuple):
    """The tokens that a loss must be given; see `masks_of`."""

    gradient: Bool[Tensor, "tokens"]
    """Tokens whose loss can have a gradient."""
    reference: Bool[Tensor, "tokens"]
    """Tokens on which the loss reads the reference."""


def masks_of(loss: PolicyLoss, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]) -> TokenMasks:
    """The masks of a loss, as far as its class states them; all tokens otherwise.

    A mask holds for the `__call__` that it was written for. Where a subclass redefines `__call__` and not the mask, new
    terms of the loss would go untrained without a word: such a loss is run in full, and `notice` says so.

    Example:
        >>> class Halved(PolicyLoss):
        ...     def __call__(self, inputs):
        ...         return self.surrogate(inputs, 0.5 * torch.ones(1), torch.zeros(1).bool(), {})
        >>> masks_of(Halved(), torch.zeros(1), torch.tensor([True]))
        TokenMasks(gradient=tensor([True]), reference=tensor([False]))
    """
    owners = [type(loss) if _is_stated(loss, name) else PolicyLoss for name in MASKS]
    return TokenMasks(*(getattr(c, name)(loss, advantages, is_correct) for c, name in zip(owners, MASKS, strict=True)))


def _is_stated(loss: PolicyLoss, mask: str) -> bool:
    """Whether the mask was written for the loss's `__call__`: by the class that defines it, or by a subclass."""
    newest = next(c for c in type(loss).__mro__ if {"__call__", mask} & c.__dict__.keys())
    return mask in newest.__dict__


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

"""GRPO plus a penalty for leaving the reference: on every token, or on the tokens of errors alone."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import Number
from apo_lightning.losses.grpo import GRPO
from apo_lightning.losses.policy_loss import applicable
from apo_lightning.types import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True)
class PenalisedGRPO(GRPO):
    """loss = GRPO + kl_coef·penalty, where penalised.

    Metrics: those of GRPO, and `kl_updated` [nats] on the tokens that are penalised.

    Attributes:
        kl_coef: weight of the penalty, ≥ 0.
        error_only: penalise tokens of A < 0 alone. All tokens stay in the denominator, so `kl_coef` stays comparable.

    Raises:
        ConfigError: a value outside its range.
    """

    kl_coef: Number = 0.01
    error_only: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.kl_coef < float("inf"):
            raise ConfigError(f"kl_coef is {self.kl_coef}: a penalty needs a finite weight of at least 0")

    def reference_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Penalised tokens: all, or those of A < 0."""
        return advantages < 0 if self.error_only else torch.ones_like(is_correct)

    def gradient_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """The tokens of GRPO's mask, and the penalised tokens where the penalty has a weight."""
        mask = self.surrogate_mask(advantages, is_correct)
        return mask if self.kl_coef == 0 else mask | self.reference_mask(advantages, is_correct)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(r, A) + kl_coef·penalty."""
        output = super().__call__(inputs)
        penalised = self.reference_mask(inputs.advantages, inputs.is_correct)
        # Where the reference was not run its row holds a placeholder.
        penalty = torch.where(penalised, self.penalty(inputs, penalised), 0.0)
        return LossOutput(
            per_token=output.per_token + self.kl_coef * penalty,
            metrics={**output.metrics, "kl_updated": applicable(penalty, penalised)},
        )

    @abstractmethod
    def penalty(self, inputs: LossInputs, penalised: Bool[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """The divergence [nats]; anything where not penalised."""

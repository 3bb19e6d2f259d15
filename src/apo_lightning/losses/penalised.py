"""GRPO plus a penalty for leaving the reference: on every token, or on the tokens of errors alone."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import KL_ESTIMATORS, Number, kl_estimate
from apo_lightning.losses.grpo import GRPO
from apo_lightning.losses.policy_loss import applicable, required
from apo_lightning.types import LossInputs, LossOutput, Needs


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


@dataclass(frozen=True, kw_only=True)
class GRPOKL(PenalisedGRPO):
    """GRPO plus a penalty for leaving the reference.

        loss = GRPO + kl_coef·KL

    Source: Shao et al. 2024, Eqs. 3 and 4; Wang et al. 2026, section 2 (`full` is the penalty as it is written there).

    Metrics: those of GRPO, and `kl_updated` [nats] on the tokens that are penalised.

    Attributes:
        kl_estimator: `k1`, `k2`, `k3`, `k3_plus` from the sampled token (`functional.kl_estimate` says what each does
            as a loss), or `full`: the sum over the vocabulary, which runs the reference with every micro-batch.
        kl_clamp: caps the value of k3 and k3_plus; None: no cap. The others do not read it.

    Raises:
        ConfigError: a value outside its range, or an unknown estimator.
    """

    kl_estimator: str = "k3"
    kl_clamp: Number | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_estimator not in (*KL_ESTIMATORS, "full"):
            raise ConfigError(f"kl_estimator is {self.kl_estimator!r}: choose one of {', '.join(KL_ESTIMATORS)}, full")
        if self.kl_clamp is not None and not self.kl_clamp > 0:
            raise ConfigError(f"kl_clamp is {self.kl_clamp}: give a positive cap, or null for none")

    @property
    def needs(self) -> Needs:
        """The loss reads the reference's log-probs of the sampled tokens, or the exact divergence."""
        full = self.kl_estimator == "full"
        return super().needs | Needs(ref_logprobs=not full, full_kl=full)

    def penalty(self, inputs: LossInputs, penalised: Bool[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """The KL from the reference, exact or estimated at the sampled token."""
        if self.kl_estimator == "full":
            return required(inputs.full_kl, "full_kl")
        ref_logprobs = required(inputs.ref_logprobs, "ref_logprobs")
        return kl_estimate(inputs.logprobs, ref_logprobs, self.kl_estimator, clamp=self.kl_clamp)

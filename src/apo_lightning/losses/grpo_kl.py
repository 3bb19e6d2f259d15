"""GRPO plus a KL penalty for leaving the reference: on every token, or on the tokens of errors alone."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import OneOf, Within
from apo_lightning.losses.functional import KL_ESTIMATORS, Number, kl_estimate
from apo_lightning.losses.grpo import GRPO
from apo_lightning.losses.policy_loss import applicable, required
from apo_lightning.types import LossInputs, LossOutput, Needs


@dataclass(frozen=True, kw_only=True)
class GRPOKL(GRPO):
    """GRPO plus a penalty for leaving the reference.

        loss = GRPO + kl_coef·KL   on the penalised tokens

    Source: Shao et al. 2024, Eqs. 3 and 4; Wang et al. 2026, section 2 (`full` is the penalty as it is written there).

    Metrics: those of GRPO, and `kl_updated` [nats] on the tokens that are penalised.

    Attributes:
        kl_coef: weight of the penalty, ≥ 0.
        error_only: penalise tokens of A < 0 alone. All tokens stay in the denominator, so `kl_coef` stays comparable.
        kl_estimator: `k1`, `k2`, `k3`, `k3_plus` from the sampled token (`functional.kl_estimate` says what each does
            as a loss), or `full`: the sum over the vocabulary, which runs the reference with every micro-batch.
        kl_clamp: caps the value of k3 and k3_plus; None: no cap. The others do not read it.

    Raises:
        ConfigError: a value outside its range, or an unknown estimator.
    """

    kl_coef: Annotated[Number, Within("[0, inf)")] = 0.01
    error_only: bool = False
    kl_estimator: Annotated[str, OneOf((*KL_ESTIMATORS, "full"))] = "k3"
    kl_clamp: Annotated[Number | None, Within("(0, inf]", "or null for none")] = 10.0

    @property
    def needs(self) -> Needs:
        """The reference's log-probs of the sampled tokens, or the exact divergence, on the penalised tokens."""
        penalised, full = "negative_advantage" if self.error_only else "all", self.kl_estimator == "full"
        reads = Needs(ref_logprobs=not full, full_kl=full, reference_on=penalised)
        return super().needs | reads | Needs(gradient_on=penalised if self.kl_coef else None)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(r, A) + kl_coef·KL."""
        output = super().__call__(inputs)
        penalised = self.needs.reference_mask(inputs.advantages, inputs.is_correct)
        # Where the reference was not run its row holds a placeholder.
        penalty = torch.where(penalised, self.penalty(inputs), 0.0)
        return LossOutput(
            per_token=output.per_token + self.kl_coef * penalty,
            metrics={**output.metrics, "kl_updated": applicable(penalty, penalised)},
        )

    def penalty(self, inputs: LossInputs) -> Float[Tensor, "tokens"]:
        """The KL from the reference [nats], exact or estimated at the sampled token; anything where not penalised."""
        if self.kl_estimator == "full":
            return required(inputs.full_kl, "full_kl")
        ref_logprobs = required(inputs.ref_logprobs, "ref_logprobs")
        return kl_estimate(inputs.logprobs, ref_logprobs, self.kl_estimator, clamp=self.kl_clamp)

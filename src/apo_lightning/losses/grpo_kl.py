"""GRPO with a KL penalty towards the reference: on every token, or on the tokens of errors alone."""

from dataclasses import dataclass

from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import KL_ESTIMATORS, Number, kl_estimate
from apo_lightning.losses.penalised import PenalisedGRPO
from apo_lightning.losses.policy_loss import required
from apo_lightning.types import LossInputs, Needs


@dataclass(frozen=True, kw_only=True)
class GRPOKL(PenalisedGRPO):
    """GRPO plus a penalty for leaving the reference.

        loss = GRPO + kl_coef·KL

    Source: Shao et al. 2024, Eqs. 3 and 4; Wang et al. 2026, section 2 (`full` is the penalty as it is written there).

    Metrics: those of GRPO, and `kl_updated` [nats] on the tokens that are penalised.

    Attributes:
        kl_coef: weight of the penalty, ≥ 0.
        kl_estimator: `k1`, `k2`, `k3`, `k3_plus` from the sampled token (`functional.kl_estimate` says what each does
            as a loss), or `full`: the sum over the vocabulary, which runs the reference with every micro-batch.
        kl_clamp: caps the value of k3 and k3_plus; None: no cap. The others do not read it.
        error_only: penalise tokens of A < 0 alone. All tokens stay in the denominator, so `kl_coef` stays comparable.

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

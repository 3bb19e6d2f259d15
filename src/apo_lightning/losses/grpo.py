"""GRPO: its clipped objective, the one with a KL penalty, and those on a ratio of whole completions (GSPO)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import (
    KL_ESTIMATORS,
    LOG_RATIO_LIMIT,
    Number,
    gradient_of,
    importance_ratio,
    kl_estimate,
    log_ratio,
    sequence_means,
)
from apo_lightning.losses.policy_loss import PolicyLoss, applicable, required
from apo_lightning.types import LossInputs, LossOutput, Needs


@dataclass(frozen=True, kw_only=True)
class GRPO(PolicyLoss):
    """The clipped objective on the importance ratio, ρ = r; no reference.

    With the advantages of `SignedReward` this is NSR, PSR or weighted REINFORCE.

    Source: Shao et al. 2024 (GRPO), Eq. 3, without its KL term; Wang et al. 2026 (APO), Eq. 1.

    Metrics: `ratio_updated`, r.

    Example:
        A good token that became 1.5 times as likely: the gain is clipped at 1.2.

        >>> import torch
        >>> tokens = dict(token_ids=torch.tensor([0]), sequence_ids=torch.tensor([0]), is_correct=torch.tensor([True]))
        >>> logprobs = dict(logprobs=torch.tensor([0.6]).log(), old_logprobs=torch.tensor([0.4]).log())
        >>> GRPO()(LossInputs(**tokens, **logprobs, advantages=torch.tensor([1.0]))).per_token
        tensor([-1.2000])
    """

    @property
    def needs(self) -> Needs:
        """Only tokens of A ≠ 0 can have a gradient, unless there is an entropy bonus."""
        return replace(super().needs, gradient_on=self.surrogate_tokens)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(r, A)."""
        ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs)
        frozen = log_ratio(inputs.logprobs, inputs.old_logprobs).abs() > LOG_RATIO_LIMIT
        return self.surrogate(inputs, ratio, frozen, {"ratio_updated": ratio.detach()})


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

    kl_coef: Number = 0.01
    error_only: bool = False
    kl_estimator: str = "k3"
    kl_clamp: Number | None = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.kl_coef < float("inf"):
            raise ConfigError(f"kl_coef is {self.kl_coef}: a penalty needs a finite weight of at least 0")
        if self.kl_estimator not in (*KL_ESTIMATORS, "full"):
            raise ConfigError(f"kl_estimator is {self.kl_estimator!r}: choose one of {', '.join(KL_ESTIMATORS)}, full")
        if self.kl_clamp is not None and not self.kl_clamp > 0:
            raise ConfigError(f"kl_clamp is {self.kl_clamp}: give a positive cap, or null for none")

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


AGGREGATION = "sequence_mean_token_mean"
"""The only aggregation under which a mean over tokens is the loss of a completion."""


@dataclass(frozen=True, kw_only=True)
class SequenceRatio(PolicyLoss):
    """A loss with one ratio and one advantage per completion."""

    @property
    def needs(self) -> Needs:
        """The loss reads a mean over each completion."""
        return replace(super().needs, gradient_on=self.surrogate_tokens, completions=True)

    def completion_columns(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """`completion_mean`: the mean of `term` over the completion."""
        term = self.term(inputs.logprobs - inputs.old_logprobs, inputs.advantages)
        means = sequence_means(term, inputs.sequence_ids)
        return {**super().completion_columns(inputs), "completion_mean": means}

    def term(self, log_ratio: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """What is averaged over a completion: d, clamped to ±20."""
        return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def check(self, *, aggregation: str, minibatches_per_step: int, advantage: object) -> None:
        """Refuse another aggregation, which would weigh completions by their length."""
        if aggregation != AGGREGATION:
            raise ConfigError(
                f"aggregation is {aggregation}: {type(self).__name__} has one ratio per completion; leave out "
                f"aggregation, or set aggregation={AGGREGATION}"
            )


@dataclass(frozen=True, kw_only=True)
class GSPO(SequenceRatio):
    """Group Sequence Policy Optimization: the clip acts on the geometric mean of a completion's ratios.

        d = log π − log π_old,   s = exp(mean of d over the completion),   ρ = sg[s]·π/sg[π]
        objective = min(ρ·A, clip(ρ, 1 − ε_low, 1 + ε_high)·A)

    With `sequence_mean_token_mean` value and gradient are those of the paper's sequence-level objective; the gradient
    weight on ∇log π(y) is s·A inside the clip.

    Source: Zheng et al. 2025 (arXiv 2507.18071), Eqs. 5-7 and 15; its ε, 3e-4 and 4e-4, are those of the YAML.

    Departure: log-ratios are clamped to ±20 on both sides; verl clamps above 10 alone, and ignores its aggregation.

    Metrics: `ratio_updated`, s.
    """

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(ρ, A)."""
        ratio = inputs.columns["completion_mean"].exp()
        rho = ratio * gradient_of(inputs.logprobs).exp()
        return self.surrogate(inputs, rho, torch.zeros_like(inputs.is_correct), {"ratio_updated": ratio})

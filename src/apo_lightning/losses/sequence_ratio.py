"""GSPO and GMPO: the importance ratio of a whole completion, as a mean over its tokens."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, log_ratio
from apo_lightning.losses.policy_loss import PolicyLoss, required
from apo_lightning.types import LossInputs, LossOutput, Needs

AGGREGATION = "sequence_mean_token_mean"
"""The only aggregation under which a mean over tokens is the loss of a completion."""


@dataclass(frozen=True, kw_only=True)
class SequenceRatio(PolicyLoss):
    """What GSPO and GMPO share: one ratio and one advantage a completion."""

    @property
    def needs(self) -> Needs:
        """The loss reads a mean over each completion."""
        return super().needs | Needs(sequence_mean=True)

    def check(self, *, aggregation: str, minibatches_per_step: int, advantage: object) -> None:
        """Refuse another aggregation, which would weigh completions by their length."""
        if aggregation != AGGREGATION:
            raise ConfigError(
                f"aggregation is {aggregation}: {type(self).__name__} has one ratio a completion; leave out "
                f"aggregation, or set aggregation={AGGREGATION}"
            )

    def gradient_mask(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens with A ≠ 0; all tokens with an entropy bonus."""
        return self.has_surrogate_gradient(advantages)


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

    gradient_mask = SequenceRatio.gradient_mask

    def sequence_term(
        self, log_ratio: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"]
    ) -> Float[Tensor, "tokens"]:
        """d."""
        return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(ρ, A)."""
        ratio = required(inputs.sequence_mean, "sequence_mean").exp()
        rho = ratio * _one(inputs.logprobs)
        return self.surrogate(inputs, rho, torch.zeros_like(inputs.is_correct), {"ratio_updated": ratio})


@dataclass(frozen=True, kw_only=True)
class GMPO(SequenceRatio):
    """Geometric-Mean Policy Optimization: log-ratios are clipped token by token, then averaged over the completion.

        c = min(d, clamp(d, ±ε)) where A > 0,   max(d, clamp(d, ±ε)) where A < 0
        objective = A·sg[exp(mean of c)]·exp(c − sg[c])

    so a token has the gradient weight exp(c̄)·A where c = d, and none where it is clipped.

    Source: Zhao et al. 2025 (arXiv 2507.20673), Eq. 4; ε = 0.4 in log space is that of the released code.

    Departure: the mean is over the whole completion; verl's is over the tokens of a micro-batch.

    Metrics: `ratio_updated`, exp(d).

    Attributes:
        clip_eps: ε in log space, on both sides.
    """

    gradient_mask = SequenceRatio.gradient_mask

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_eps_high is not None or self.dual_clip is not None:
            raise ConfigError("GMPO clips log-ratios to ±clip_eps: leave clip_eps_high and dual_clip null")

    def sequence_term(
        self, log_ratio: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"]
    ) -> Float[Tensor, "tokens"]:
        """c."""
        log_ratio = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        clipped = log_ratio.clamp(-self.clip_eps, self.clip_eps)
        return torch.where(advantages > 0, torch.minimum(log_ratio, clipped), torch.maximum(log_ratio, clipped))

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−A·exp(c̄), with the gradient of the tokens that are not clipped."""
        difference = log_ratio(inputs.logprobs, inputs.old_logprobs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        flat = self.sequence_term(difference, inputs.advantages) != difference
        moving = torch.where(flat, 1.0, _one(inputs.logprobs))
        objective = inputs.advantages * required(inputs.sequence_mean, "sequence_mean").exp() * moving
        return self.from_objective(inputs, objective, flat, {"ratio_updated": difference.exp()})


def _one(logprobs: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """1, with the gradient of log π(y)."""
    return (logprobs - logprobs.detach()).nan_to_num(0.0).exp()

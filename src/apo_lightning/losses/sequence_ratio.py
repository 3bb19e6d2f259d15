"""GSPO: the importance ratio of a whole completion, as a mean over its tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.contracts import Recipe
from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, gradient_of, sequence_means
from apo_lightning.losses.policy_loss import PolicyLoss
from apo_lightning.types import LossInputs, LossOutput, Needs

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

    def check(self, recipe: Recipe) -> None:
        """Refuse another aggregation, which would weigh completions by their length."""
        if (aggregation := recipe.settings.aggregation) != AGGREGATION:
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

"""GMPO: the geometric mean of the ratios of a completion, each of which is clipped."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses import SequenceRatio
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, gradient_of, log_ratio
from apo_lightning.types import LossInputs, LossOutput


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_eps_high is not None or self.dual_clip is not None:
            raise ConfigError("GMPO clips log-ratios to ±clip_eps: leave clip_eps_high and dual_clip null")

    def term(self, log_ratio: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """c."""
        log_ratio = super().term(log_ratio, advantages)
        clipped = log_ratio.clamp(-self.clip_eps, self.clip_eps)
        return torch.where(advantages > 0, torch.minimum(log_ratio, clipped), torch.maximum(log_ratio, clipped))

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−A·exp(c̄), with the gradient of the tokens that are not clipped."""
        difference = log_ratio(inputs.logprobs, inputs.old_logprobs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        flat = self.term(difference, inputs.advantages) != difference
        moving = torch.where(flat, 1.0, gradient_of(inputs.logprobs).exp())
        objective = inputs.advantages * inputs.columns["completion_mean"].exp() * moving
        return self.from_objective(inputs, objective, flat, {"ratio_updated": difference.exp()})

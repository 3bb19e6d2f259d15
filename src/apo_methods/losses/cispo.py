"""CISPO: the importance weight is capped, and no token loses its gradient."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch

from apo_lightning.common.ranges import Within
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.functional import Number, importance_ratio
from apo_lightning.types import LossInputs, LossOutput, Needs


@dataclass(frozen=True, kw_only=True)
class CISPO(PolicyLoss):
    """REINFORCE with a capped, constant importance weight.

        objective = sg[min(r, cap)]·A·log π(y)

    The gradient weight on ∇log π(y) is min(r, cap)·A, where PPO's clip would make it 0. `clip_fraction` counts r > cap.
    There is no clip, so this is no base for APO, whose pull is bounded by it.

    Source: MiniMax 2025 (arXiv 2506.13585), Eq. 4; it gives no value of the cap.

    Departure: verl also raises r to 1 − ε from below, which the paper does not; TRL's cap is its `epsilon_high`, whose
    default 0.2 scales every gradient by at most 0.2.

    Metrics: `ratio_updated`, r.

    Attributes:
        cap: > 0; 5 is the value of Khatri et al. 2025 (ScaleRL).

    Raises:
        ConfigError: a value outside its range.

    Example:
        A token that became 6 times as likely: its gradient is that of one that became 5 times as likely.

        >>> logprobs = torch.tensor([0.6]).log().requires_grad_()
        >>> tokens = dict(token_ids=torch.tensor([0]), sequence_ids=torch.tensor([0]), is_correct=torch.tensor([True]))
        >>> inputs = LossInputs(**tokens, logprobs=logprobs, old_logprobs=torch.tensor([0.1]).log(),
        ...     advantages=torch.tensor([1.0]))
        >>> CISPO()(inputs).per_token.sum().backward()
        >>> logprobs.grad
        tensor([-5.])
    """

    cap: Annotated[Number, Within("(0, inf]", "such as 5")] = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.clip_eps, self.clip_eps_high, self.dual_clip) != (PolicyLoss.clip_eps, None, None):
            raise ConfigError("CISPO has no clip but its cap: leave clip_eps, clip_eps_high and dual_clip out")

    @property
    def needs(self) -> Needs:
        """Only tokens of A ≠ 0 can have a gradient, unless there is an entropy bonus."""
        return replace(super().needs, gradient_on=self.surrogate_tokens)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−sg[min(r, cap)]·A·log π(y)."""
        ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs).detach()
        # A token of A = 0 may have log π = −∞, and 0·∞ is NaN.
        logprobs = torch.where(inputs.advantages != 0, inputs.logprobs, 0.0)
        objective = ratio.clamp(max=self.cap) * inputs.advantages * logprobs
        return self.from_objective(inputs, objective, ratio > self.cap, {"ratio_updated": ratio})

"""Generalised advantage estimation: advantages and returns of single tokens, from a critic's values."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.advantages.estimator import keep_all
from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.contracts import estimators_in
from apo_lightning.types import AdvantageInputs, Advantages

WHITENINGS = ("shift_scale", "scale", "none")
EPSILON = 1e-8
"""Added to the variance by which advantages are divided; verl's value."""


@dataclass(frozen=True)
class GAE(Checked):
    """Generalised advantage estimation with a reward at the last token of each completion.

        δ_t = r_t + γ·V_{t+1} − V_t,   Â_t = δ_t + γλ·Â_{t+1},   R_t = Â_t + V_t

    V_t is the value of the state before token t. After the last token V = 0 and Â = 0, also where the completion was
    cut at its length limit.

    Called with the rewards of groups, as every estimator is, it gives each completion its reward: Â for V = 0 and
    γ = λ = 1. The critic's stage of a step then replaces it by `of_values` and `whitened`.

    Source: Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation", Eqs.
    11-16; another λ for returns, Yuan et al. 2025 (VC-PPO, arXiv 2503.01491), section 3.3.

    Attributes:
        gamma: γ in (0, 1], the discount of later rewards.
        gae_lambda: λ in [0, 1]; 1: Â = R − V, unbiased; 0: one step, the least variance.
        gae_lambda_values: λ of the returns; None: `gae_lambda`.
        whiten: `shift_scale`: (Â − mean)/σ; `scale`: Â/σ, which keeps every sign; `none`: Â.

    Raises:
        ConfigError: a value outside its range.

    Example:
        A correct completion of three tokens: with λ = 1, Â = 1 − V.

        >>> values = torch.tensor([0.5, 0.4, 0.6], dtype=torch.float64)
        >>> advantages, returns = GAE().of_values(torch.tensor([1.0]), values, torch.tensor([3]))
        >>> advantages, returns
        (tensor([0.5000, 0.6000, 0.4000], dtype=torch.float64), tensor([1., 1., 1.], dtype=torch.float64))
    """

    gamma: Annotated[float | int, Within("(0, 1]")] = 1.0
    gae_lambda: Annotated[float | int, Within("[0, 1]")] = 1.0
    gae_lambda_values: Annotated[float | int | None, Within("[0, 1]")] = None
    whiten: Annotated[str, OneOf(WHITENINGS)] = "shift_scale"

    per_token: ClassVar[bool] = True

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The reward of each completion; none is dropped."""
        return keep_all(inputs.rewards)

    def of_values(
        self, rewards: Float[Tensor, "sequences"], values: Float[Tensor, "tokens"], lengths: Int[Tensor, "sequences"]
    ) -> tuple[Float[Tensor, "tokens"], Float[Tensor, "tokens"]]:
        """Advantages Â before whitening, and returns R, in float64.

        Args:
            rewards: of each completion, given at its last token.
            values: V_t of each token, completion after completion.
            lengths: tokens of each completion, at least 1.
        """
        advantages = discounted_sums(rewards, values, lengths, gamma=self.gamma, gae_lambda=self.gae_lambda)
        if self.gae_lambda_values in (None, self.gae_lambda):
            return advantages, advantages + values
        others = discounted_sums(rewards, values, lengths, gamma=self.gamma, gae_lambda=self.gae_lambda_values)
        return advantages, others + values

    def whitened(self, advantages: Float[Tensor, "tokens"], mean: float, variance: float) -> Float[Tensor, "tokens"]:
        """Advantages in standard deviations, √(variance + 1e-8); mean, and variance over n − 1, are of kept tokens."""
        if self.whiten == "none":
            return advantages
        return (advantages - mean * (self.whiten == "shift_scale")) / math.sqrt(variance + EPSILON)


def discounted_sums(
    rewards: Float[Tensor, "sequences"],
    values: Float[Tensor, "tokens"],
    lengths: Int[Tensor, "sequences"],
    *,
    gamma: float | int,
    gae_lambda: float | int,
) -> Float[Tensor, "tokens"]:
    """Â_t = δ_t + γλ·Â_{t+1}, in float64, as in `GAE.of_values`: one pass from the last tokens back to the first."""
    values, ends = values.double(), lengths.cumsum(0)
    advantages = torch.zeros_like(values)
    order = lengths.argsort(descending=True)  # so that the completions that reach a position come first
    ends, lengths = ends[order], lengths[order]
    reward = rewards.double()[order]
    next_value = next_advantage = torch.zeros_like(reward)
    for back in range(int(lengths.max()) if len(lengths) else 0):
        num = int((lengths > back).sum())
        here = ends[:num] - 1 - back
        delta = reward[:num] + gamma * next_value[:num] - values[here]
        next_advantage = delta + gamma * gae_lambda * next_advantage[:num]
        next_value, reward = values[here], torch.zeros_like(reward)
        advantages[here] = next_advantage
    return advantages


def gae_of(estimator: Any) -> GAE | None:
    """The `GAE` of an estimator or inside the estimators that wrap it; None: there is none.

    Example:
        >>> from apo_lightning.advantages import GAE, GroupNormalized, Truncated, gae_of
        >>> gae_of(Truncated(GAE(gamma=0.5))).gamma, gae_of(GroupNormalized())
        (0.5, None)
    """
    return next((part for part in estimators_in(estimator) if isinstance(part, GAE)), None)

"""Advantages of rewards of 0 and 1: signed rewards, and pass@k training."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages.estimator import EPSILON, keep_all
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs, Advantages, Needs


@dataclass(frozen=True)
class SignedReward:
    """The verdict itself as the advantage: no baseline, no normalisation.

        A = +positive_weight on a correct completion, −negative_weight on an incorrect one

    A completion of weight 0 is *dropped*. All-wrong groups do train here; under GRPO their advantage is 0.

    (0, 1) is NSR, negative samples alone; (1, 0) is PSR, its mirror image; (0.1, 1) is weighted REINFORCE.

    Source: Zhu et al. 2025, "The surprising effectiveness of negative reinforcement in LLM reasoning".

    Attributes:
        positive_weight: ≥ 0.
        negative_weight: ≥ 0; not both 0.

    Raises:
        ConfigError: a weight is negative, or both are 0.

    Example:
        >>> rewards = torch.tensor([[1.0, 0.0]])
        >>> lengths = torch.ones_like(rewards, dtype=torch.long)
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths)
        >>> advantages = SignedReward(positive_weight=0.0, negative_weight=1.0)(inputs)
        >>> advantages.values, advantages.keep
        (tensor([[ 0., -1.]]), tensor([[False,  True]]))
    """

    positive_weight: float | int = 0.0
    negative_weight: float | int = 1.0

    needs: ClassVar[Needs] = Needs(binary_rewards=True)

    def __post_init__(self) -> None:
        for name, weight in (("positive_weight", self.positive_weight), ("negative_weight", self.negative_weight)):
            if not 0 <= weight < math.inf:
                raise ConfigError(f"{name} is {weight}: give a finite weight of at least 0; the sign is the verdict's")
        if self.positive_weight == self.negative_weight == 0:
            raise ConfigError("positive_weight and negative_weight are both 0: every completion would be dropped")

    @property
    def spares_errors(self) -> bool:
        """PSR trains on correct completions alone."""
        return self.negative_weight == 0

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """± the weight of the verdict."""
        require_binary(inputs.rewards, "a signed reward")
        positive = torch.full_like(inputs.rewards, self.positive_weight)
        negative = torch.full_like(inputs.rewards, self.negative_weight)
        weights = torch.where(inputs.is_correct, positive, negative)
        return Advantages(values=torch.where(inputs.is_correct, weights, -weights), keep=weights > 0)


@dataclass(frozen=True)
class PassAtK:
    """Pass@k training: a completion's advantage in a random subset of k, rewarded when one of its members is correct.

        R̄ = 1 − C(n−c, k)/C(n, k),   σ = √(R̄·(1 − R̄))
        A⁺ = (1 − R̄)/(σ + 1e-6),   A⁻ = (1 − R̄ − C(n−c−1, k−1)/C(n−1, k−1))/(σ + 1e-6)

    for c correct of n, in exact integer binomials. A⁻ ≤ 0, so this combines with APO. All 0 where c is 0 or n, or where
    every subset holds a correct one (n − c < k).

    Source: Chen et al. 2025, "Pass@k training for adaptively balancing exploration and exploitation of large reasoning
    models" (arXiv 2508.10751), section 2.4.

    Attributes:
        k: 1 ≤ k < group size; 1 is group normalisation with std over n.

    Raises:
        ConfigError: k is below 1.

    Example:
        n = 4, c = 1, k = 2: R̄ = 1 − 3/6 = 1/2, A⁺ = 1, A⁻ = (1/2 − 2/3)/(1/2) = −1/3.

        >>> rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
        >>> lengths = torch.ones_like(rewards, dtype=torch.long)
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths)
        >>> PassAtK(k=2)(inputs).values
        tensor([[ 1.0000, -0.3333, -0.3333, -0.3333]])
    """

    k: int

    needs: ClassVar[Needs] = Needs(binary_rewards=True)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k is {self.k}: pass@k needs a k of at least 1")

    def check(self, group_size: int) -> None:
        """Refuse k ≥ n: at k = n all completions share one reward."""
        if self.k >= group_size:
            raise ConfigError(f"k is {self.k} with group_size {group_size}: pass@k training needs 1 <= k < group_size")

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """A⁺ on correct completions, A⁻ on the others."""
        rewards = inputs.rewards
        self.check(rewards.shape[1])
        require_binary(rewards, "pass@k training")
        correct = rewards == 1
        table = [self._advantages(rewards.shape[1], int(count)) for count in correct.sum(dim=1)]
        positive, negative = rewards.new_tensor(table).view(-1, 2, 1).unbind(dim=1)
        return keep_all(torch.where(correct, positive, negative))

    def _advantages(self, n: int, c: int) -> tuple[float, float]:
        """(A⁺, A⁻) in a group with c of n correct."""
        if c == 0 or n - c < self.k:
            return 0.0, 0.0
        fail = math.comb(n - c, self.k) / math.comb(n, self.k)
        fail_with_an_error = math.comb(n - c - 1, self.k - 1) / math.comb(n - 1, self.k - 1)
        std = math.sqrt(fail * (1 - fail)) + EPSILON
        return fail / std, (fail - fail_with_an_error) / std


def require_binary(rewards: Float[Tensor, "prompts group"], what: str) -> None:
    """Raise `ConfigError` for a reward other than 0 and 1."""
    other = rewards[(rewards != 0) & (rewards != 1)]
    if len(other):
        raise ConfigError(f"a reward is {other[0].item():.6g}: {what} is defined for rewards of 0 and 1 only")

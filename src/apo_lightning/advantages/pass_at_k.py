"""Pass@k training."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from apo_lightning.advantages.estimator import EPSILON, keep_all, require_binary
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs, Advantages, Needs


@dataclass(frozen=True)
class PassAtK(Checked):
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

    k: Annotated[int, Within("[1, inf)")]

    needs: ClassVar[Needs] = Needs(binary_rewards=True)

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

"""Advantages against the other completions of a group: GRPO, Dr. GRPO and RLOO."""

from dataclasses import dataclass

from apo_lightning.advantages.estimator import EPSILON, at_least_two, keep_all, zero_where_equal
from apo_lightning.types import AdvantageInputs, Advantages


@dataclass(frozen=True)
class GroupNormalized:
    """GRPO's advantage: the reward in standard deviations above its group's mean.

        A = (r − mean)/(std + 1e-6),   std over n − 1

    Where all rewards of a group are equal, A is exactly 0; in float32 the formula gives 0.056 for eight rewards of 0.7.

    Source: Shao et al. 2024, section 4.1.2; without the division, Liu et al. 2025 (Dr. GRPO).

    Attributes:
        normalize_std: divide by the standard deviation; False is Dr. GRPO.

    Example:
        One of two is correct: the mean is 1/2 and std is 1/√2.

        >>> import torch
        >>> rewards = torch.tensor([[1.0, 0.0]])
        >>> lengths = torch.ones_like(rewards, dtype=torch.long)
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths)
        >>> GroupNormalized()(inputs).values
        tensor([[ 0.7071, -0.7071]])
    """

    normalize_std: bool = True

    def check(self, group_size: int) -> None:
        """Refuse a group of one, which is its own mean."""
        at_least_two(group_size, "a group-normalised advantage")

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """(r − mean)/(std + 1e-6), or r − mean."""
        rewards = inputs.rewards
        self.check(rewards.shape[1])
        values = rewards - rewards.mean(dim=1, keepdim=True)
        if self.normalize_std:
            values = values / (rewards.std(dim=1, keepdim=True) + EPSILON)
        return keep_all(zero_where_equal(values, rewards))


@dataclass(frozen=True)
class LeaveOneOut:
    """RLOO: how far the reward is above the mean of the *other* completions of its group.

        A_i = r_i − (Σ_{j≠i} r_j)/(n − 1)

    Exactly 0 where all rewards of a group are equal.

    Source: Ahmadian et al. 2024, Eq. 6; Kool et al. 2019.

    Example:
        >>> import torch
        >>> rewards = torch.tensor([[1.0, 0.0, 0.0]])
        >>> lengths = torch.ones_like(rewards, dtype=torch.long)
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths)
        >>> LeaveOneOut()(inputs).values
        tensor([[ 1.0000, -0.5000, -0.5000]])
    """

    def check(self, group_size: int) -> None:
        """Refuse a group of one, which has no other completions."""
        at_least_two(group_size, "a leave-one-out advantage")

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """Reward − mean of the others."""
        rewards = inputs.rewards
        self.check(rewards.shape[1])
        others = (rewards.sum(dim=1, keepdim=True) - rewards) / (rewards.shape[1] - 1)
        return keep_all(zero_where_equal(rewards - others, rewards))

"""What runs with a critic are compared with: the same tokens, without one."""

from dataclasses import dataclass, replace

import torch

from apo_lightning.advantages import SignedReward
from apo_lightning.losses import GRPO
from apo_lightning.types import Advantages


@dataclass(frozen=True)
class RewardOfAll(SignedReward):
    """`SignedReward(1, 0)` with nothing dropped."""

    positive_weight: float = 1.0
    negative_weight: float = 0.0

    def __call__(self, inputs):
        values = super().__call__(inputs).values.abs()
        return Advantages(values=values, keep=torch.ones_like(values, dtype=torch.bool))


@dataclass(frozen=True, kw_only=True)
class WholeGRPO(GRPO):
    """GRPO that runs every kept token."""

    @property
    def needs(self):
        return replace(super().needs, gradient_on="all")

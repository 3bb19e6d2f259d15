"""Verifiable rewards: completion text and gold answer → `Verdict`."""

from apo_lightning.contracts import Reward
from apo_lightning.rewards.callable import CallableReward
from apo_lightning.rewards.math_verify import MathVerifyReward
from apo_lightning.rewards.numeric import NumericReward
from apo_lightning.rewards.weighted import WeightedRewards

__all__ = [
    "CallableReward",
    "MathVerifyReward",
    "NumericReward",
    "Reward",
    "WeightedRewards",
]

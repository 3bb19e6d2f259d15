"""Verifiable rewards: completion text and gold answer → `Verdict`."""

from apo_lightning.rewards.callable import CallableReward
from apo_lightning.rewards.math_verify import MathVerifyReward
from apo_lightning.rewards.numeric import NumericReward
from apo_lightning.rewards.reward import Reward
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.rewards.weighted import WeightedRewards
from apo_lightning.types import Verdict

__all__ = [
    "CallableReward",
    "MathVerifyReward",
    "NumericReward",
    "Reward",
    "Verdict",
    "WeightedRewards",
    "check_error_rate",
]

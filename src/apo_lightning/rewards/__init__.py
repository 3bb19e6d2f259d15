"""Verifiable rewards: completion text and gold answer → `Verdict`."""

from apo_lightning.rewards.base import Reward
from apo_lightning.rewards.callable import CallableReward
from apo_lightning.rewards.math_verify import MathVerifyReward
from apo_lightning.rewards.numeric import NumericReward
from apo_lightning.rewards.puzzle import PuzzleReward
from apo_lightning.rewards.verdicts import check_error_rate
from apo_lightning.types import Verdict

__all__ = [
    "CallableReward",
    "MathVerifyReward",
    "NumericReward",
    "PuzzleReward",
    "Reward",
    "Verdict",
    "check_error_rate",
]

"""Advantage estimators: rewards of a group → how much better each completion was than expected."""

from apo_lightning.advantages.estimator import needs_of
from apo_lightning.advantages.gae import GAE, gae_of
from apo_lightning.advantages.group import GroupNormalized, LeaveOneOut
from apo_lightning.advantages.pass_at_k import PassAtK
from apo_lightning.advantages.shaping import (
    Adjusted,
    Adjustment,
    Informative,
    OverlongPenalty,
    Shaped,
    Truncated,
)
from apo_lightning.advantages.signed_reward import SignedReward
from apo_lightning.contracts import AdvantageEstimator

__all__ = [
    "GAE",
    "Adjusted",
    "Adjustment",
    "AdvantageEstimator",
    "GroupNormalized",
    "Informative",
    "LeaveOneOut",
    "OverlongPenalty",
    "PassAtK",
    "Shaped",
    "SignedReward",
    "Truncated",
    "gae_of",
    "needs_of",
]

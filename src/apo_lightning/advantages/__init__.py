"""Advantage estimators: rewards of a group → how much better each completion was than expected."""

from apo_lightning.advantages.estimator import AdvantageEstimator, estimators_in, reads_of
from apo_lightning.advantages.gae import GAE, gae_of
from apo_lightning.advantages.group import GroupNormalized, LeaveOneOut
from apo_lightning.advantages.informative import Informative
from apo_lightning.advantages.pass_at_k import PassAtK
from apo_lightning.advantages.pkpo import PKPO
from apo_lightning.advantages.shaping import OverlongPenalty, Shaped, Truncated
from apo_lightning.advantages.signed_reward import SignedReward
from apo_lightning.advantages.unlikeliness import Unlikeliness

__all__ = [
    "GAE",
    "PKPO",
    "AdvantageEstimator",
    "GroupNormalized",
    "Informative",
    "LeaveOneOut",
    "OverlongPenalty",
    "PassAtK",
    "Shaped",
    "SignedReward",
    "Truncated",
    "Unlikeliness",
    "estimators_in",
    "gae_of",
    "reads_of",
]

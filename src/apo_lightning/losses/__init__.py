"""Policy losses: one small frozen dataclass each, whose fields are the keys of its YAML in `configs/algo/`."""

from apo_lightning.losses.apo import APO
from apo_lightning.losses.grpo import GRPO
from apo_lightning.losses.grpo_kl import GRPOKL
from apo_lightning.losses.policy_loss import PolicyLoss, applicable, required
from apo_lightning.losses.sequence_ratio import GSPO, SequenceRatio

__all__ = [
    "APO",
    "GRPO",
    "GRPOKL",
    "GSPO",
    "PolicyLoss",
    "SequenceRatio",
    "applicable",
    "required",
]

"""Policy losses: one small frozen dataclass each, whose fields are the keys of its YAML in `configs/algo/`."""

from apo_lightning.losses.apo import APO
from apo_lightning.losses.grpo import GRPO, GRPOKL, GSPO, SequenceRatio
from apo_lightning.losses.policy_loss import PolicyLoss, applicable, required

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

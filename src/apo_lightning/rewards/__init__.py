"""Verifiable rewards: completion text and gold answer → `Verdict`.

Names are imported on first use, as the verifier's workers import `rewards.math_equivalence` and must not load torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from apo_lightning.rewards.callable import CallableReward
    from apo_lightning.rewards.math_verify import MathVerifyReward
    from apo_lightning.rewards.numeric import NumericReward
    from apo_lightning.rewards.reward import Reward
    from apo_lightning.rewards.verdicts import check_error_rate
    from apo_lightning.rewards.weighted import WeightedRewards
    from apo_lightning.types import Verdict

_MODULES = {
    "CallableReward": "rewards.callable",
    "MathVerifyReward": "rewards.math_verify",
    "NumericReward": "rewards.numeric",
    "Reward": "rewards.reward",
    "Verdict": "types",
    "WeightedRewards": "rewards.weighted",
    "check_error_rate": "rewards.verdicts",
}

__all__ = [
    "CallableReward",
    "MathVerifyReward",
    "NumericReward",
    "Reward",
    "Verdict",
    "WeightedRewards",
    "check_error_rate",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"apo_lightning.{_MODULES[name]}"), name)

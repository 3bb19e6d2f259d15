"""GRPO with a weaker push on wrong answers."""

from dataclasses import dataclass, replace

from apo_lightning.losses import GRPO
from apo_lightning.types import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True)
class SofterPush(GRPO):
    """GRPO whose negative advantages are multiplied by `scale`."""

    scale: float = 0.5

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The loss of each token."""
        weight = inputs.advantages.new_tensor(1.0).where(inputs.advantages >= 0, self.scale)
        return super().__call__(replace(inputs, advantages=inputs.advantages * weight))

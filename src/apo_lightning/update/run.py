"""What the stages of a step read of the run that they belong to."""

from typing import Protocol, runtime_checkable

import lightning.pytorch as pl
import torch
from torch import Tensor

from apo_lightning.advantages import AdvantageEstimator
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.critic import Critic
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.update.nonfinite import NonfiniteSteps
from apo_lightning.update.settings import StepSettings


@runtime_checkable
class Run(Protocol):
    """The training module, as far as planning, scoring and the update know it; none of them assigns to it.

    The module inherits from it: from Python 3.12 on, `isinstance` does not find a module's submodules by itself.
    """

    policy: Policy
    reference: Reference | None
    critic: Critic | None
    advantage: AdvantageEstimator
    loss: PolicyLoss
    settings: StepSettings
    nonfinite: NonfiniteSteps
    ranks: Ranks
    seed: int

    @property
    def device(self) -> torch.device:
        """Of the policy."""
        ...

    @property
    def trainer(self) -> pl.Trainer:
        """Lightning's."""
        ...

    def manual_backward(self, loss: Tensor) -> None:
        """Lightning's: a backward as strategy and precision want it."""
        ...

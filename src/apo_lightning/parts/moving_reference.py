"""The reference follows the policy at intervals."""

from collections.abc import Mapping

from torch import Tensor
from torch.optim import Optimizer

from apo_lightning.common.console import say
from apo_lightning.model.average import average
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.model.reference import ReferenceSchedule
from apo_lightning.step.part import Part, Setup
from apo_lightning.types import StepOutput


class MovingReference(Part):
    """Applies the rule of a schedule, and saves the reference's weights."""

    name = "moving_reference"

    def __init__(self, reference: Reference, schedule: ReferenceSchedule) -> None:
        self.reference = reference
        self.schedule = schedule

    def optimizer_step(self, setup: Setup, *, policy_moved: bool) -> None:
        """Follow the policy, if the reference is its moving average."""
        tau = self.schedule.ema_tau
        if policy_moved and tau is not None:
            self._follow(setup.policy, 1 - tau)

    def updated(self, setup: Setup, step: int, optimizer: Optimizer) -> None:
        """Follow the policy, if the training step (from 1) is due."""
        if weight := self.schedule.policy_weight(step):
            self._follow(setup.policy, weight)
        if weight and self.schedule.reset_every is not None:
            # Adam's step count is part of it: with moments of 0 alone the next updates would be three times as long.
            optimizer.state.clear()
            say(f"step {step}: the policy becomes the reference, and the optimizer starts again")

    def _follow(self, policy: Policy, weight: float | int) -> None:
        """θ_ref ← (1 − weight)·θ_ref + weight·θ."""
        weights, others = (dict(one.model.named_parameters()) for one in (self.reference.policy, policy))
        average(weights, others, weight)

    def metrics(self, setup: Setup, step: StepOutput) -> dict[str, float]:
        """`reference/age`: training steps since the reference changed."""
        age = self.schedule.age(step.step)
        return {} if age is None else {"reference/age": float(age)}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The reference's weights."""
        named = self.reference.policy.model.named_parameters()
        return {f"reference.{name}": weight.detach() for name, weight in named}

"""Estimators whose advantages are changed afterwards, by a term or a factor for each completion."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages.estimator import Wrapper
from apo_lightning.types import AdvantageInputs, Advantages


@runtime_checkable
class Adjustment(Protocol):
    """Advantages → other advantages. It may have an estimator's `reads`, `check` and `punishes_correct`."""

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """The advantages that enter the loss."""
        ...


@dataclass(frozen=True)
class Adjusted(Wrapper):
    """An estimator with adjusted advantages; what it drops stays dropped.

    Unlike a shaping of rewards (see `Shaped`), an adjustment acts behind the group's mean and standard deviation: it
    also reaches groups whose rewards are all equal. With another `Adjusted` as its estimator, two adjustments act in
    turn.

    Attributes:
        estimator: gives the advantages.
        adjustment: changes them.
    """

    adjustment: Adjustment

    @property
    def parts(self) -> Sequence[object]:
        """Estimator and adjustment."""
        return self.estimator, self.adjustment

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages, adjusted."""
        given = self.estimator(inputs)
        return replace(given, values=self.adjustment(inputs, given.values))

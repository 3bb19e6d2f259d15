"""Groups whose completions are all correct or all wrong, left out of the update."""

from dataclasses import dataclass, replace

from apo_lightning.advantages.estimator import Wrapper
from apo_lightning.types import AdvantageInputs, Advantages, mixed


@dataclass(frozen=True)
class Informative(Wrapper):
    """Drops groups without both correct and wrong completions: they leave every denominator.

    Verdicts count, not rewards. Under GRPO such a group has no gradient, so the direction of the update stays and the
    mean is over the other groups. `DynamicSampling` needs it.

    Source: Yu et al. 2025 (DAPO), section 3.2.

    Attributes:
        estimator: gives the advantages.
    """

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """The estimator's advantages, without the groups that are not mixed."""
        given = self.estimator(inputs)
        return replace(given, keep=given.keep & mixed(inputs.is_correct)[:, None])

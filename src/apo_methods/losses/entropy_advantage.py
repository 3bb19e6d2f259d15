"""GRPO whose advantages grow with the entropy of the policy at the token."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Within
from apo_lightning.losses import GRPO, applicable, required
from apo_lightning.losses.functional import Number
from apo_lightning.types import LossInputs, LossOutput, Needs


@dataclass(frozen=True, kw_only=True)
class EntropyAdvantage(GRPO):
    """GRPO with a constant bonus on the advantage of uncertain tokens.

        A_t ← A_t + min(alpha·H_t, |A_t|/kappa)

    H_t is the entropy of the current policy, held constant: unlike with an entropy bonus nothing pushes it up. The cap
    keeps every sign, and A = 0 stays 0.

    Source: Cheng et al. 2025 (arXiv 2506.14758); their values for GRPO.

    Metrics: those of GRPO, and `entropy_advantage`, the bonus where A ≠ 0.

    Attributes:
        alpha: ≥ 0, per nat; 0 is GRPO.
        kappa: > 1.

    Raises:
        ConfigError: a value outside its range.
    """

    alpha: Annotated[Number, Within("[0, inf)", "such as 0.4")] = 0.4
    kappa: Annotated[Number, Within("(1, inf]", "such as 2, so that every A keeps its sign")] = 2.0

    @property
    def needs(self) -> Needs:
        """The loss reads the policy's entropy."""
        return super().needs | Needs(entropy=True)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """GRPO's loss of the larger advantages."""
        bonus = self.bonus(required(inputs.entropy, "entropy").detach(), inputs.advantages)
        output = GRPO.__call__(self, replace(inputs, advantages=inputs.advantages + bonus))
        metrics = {**output.metrics, "entropy_advantage": applicable(bonus, inputs.advantages != 0)}
        return replace(output, metrics=metrics)

    def bonus(self, entropy: Float[Tensor, "tokens"], advantages: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """min(alpha·H, |A|/kappa).

        Example:
            >>> EntropyAdvantage().bonus(torch.tensor([0.5, 2.0, 2.0]), torch.tensor([1.0, -1.0, 0.0]))
            tensor([0.2000, 0.5000, 0.0000])
        """
        return torch.minimum(self.alpha * entropy, advantages.abs() / self.kappa)

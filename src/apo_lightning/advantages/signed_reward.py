"""The verdict itself as the advantage: NSR, PSR and weighted REINFORCE."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from apo_lightning.advantages.estimator import require_binary
from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs, Advantages, Needs


@dataclass(frozen=True)
class SignedReward(Checked):
    """The verdict itself as the advantage: no baseline, no normalisation.

        A = +positive_weight on a correct completion, −negative_weight on an incorrect one

    A completion of weight 0 is *dropped*. All-wrong groups do train here; under GRPO their advantage is 0.

    (0, 1) is NSR, negative samples alone; (1, 0) is PSR, its mirror image; (0.1, 1) is weighted REINFORCE.

    Source: Zhu et al. 2025, "The surprising effectiveness of negative reinforcement in LLM reasoning".

    Attributes:
        positive_weight: ≥ 0.
        negative_weight: ≥ 0; not both 0.

    Raises:
        ConfigError: a weight is negative, or both are 0.

    Example:
        >>> rewards = torch.tensor([[1.0, 0.0]])
        >>> lengths = torch.ones_like(rewards, dtype=torch.long)
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths)
        >>> advantages = SignedReward(positive_weight=0.0, negative_weight=1.0)(inputs)
        >>> advantages.values, advantages.keep
        (tensor([[ 0., -1.]]), tensor([[False,  True]]))
    """

    positive_weight: Annotated[float | int, Within("[0, inf)", "since the verdict decides the sign")] = 0.0
    negative_weight: Annotated[float | int, Within("[0, inf)", "since the verdict decides the sign")] = 1.0

    needs: ClassVar[Needs] = Needs(binary_rewards=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positive_weight == self.negative_weight == 0:
            raise ConfigError("positive_weight and negative_weight are both 0: every completion would be dropped")

    @property
    def spares_errors(self) -> bool:
        """PSR trains on correct completions alone."""
        return self.negative_weight == 0

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """± the weight of the verdict."""
        require_binary(inputs.rewards, "a signed reward")
        positive = torch.full_like(inputs.rewards, self.positive_weight)
        negative = torch.full_like(inputs.rewards, self.negative_weight)
        weights = torch.where(inputs.is_correct, positive, negative)
        return Advantages(values=torch.where(inputs.is_correct, weights, -weights), keep=weights > 0)

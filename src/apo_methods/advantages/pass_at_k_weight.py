"""Pass@k reweighting: a prompt counts by the slope of its pass@k."""

import math
from dataclasses import dataclass
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs


@dataclass(frozen=True)
class PassAtKWeight(Checked):
    """An adjustment of advantages that weighs a prompt by ∂pass@k/∂p = k·(1 − p)^(k−1), estimated from its group.

        A ← A·k·C(n−c, k−1)/C(n, k−1)   for c correct of n

    The binomials give the unbiased estimate of (1 − p)^(k−1). Signs stay, so this combines with every estimator and
    loss; the product with A is no unbiased gradient of pass@k, PKPO's advantage is. k = 1 changes nothing.

    Source: Mahdavi et al. 2025, "Beyond accuracy: a policy gradient reweighting approach for pass@k maximization in
    LLMs", for the weight.

    Departure: the estimate is unbiased; with c/n in place of p, 3 of 8 correct and k = 4 have 0.977, not 0.714.

    Attributes:
        k: ≥ 1, at most one above the group size.

    Raises:
        ConfigError: a value outside its range.

    Example:
        3 of 8 are correct: 4·C(5, 3)/C(8, 3) = 4·10/56.

        >>> import torch
        >>> correct = torch.tensor([[True] * 3 + [False] * 5])
        >>> inputs = AdvantageInputs(rewards=correct.float(), is_correct=correct, lengths=torch.ones(1, 8).long())
        >>> PassAtKWeight(k=4)(inputs, torch.ones(1, 8))[0, 0]
        tensor(0.7143)
    """

    k: Annotated[int, Within("[1, inf)")]

    def check(self, group_size: int) -> None:
        """Refuse a k whose weight cannot be estimated from the group."""
        if self.k > group_size + 1:
            raise ConfigError(f"k is {self.k} with group_size {group_size}: give at most {group_size + 1}")

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A times the weight of its prompt."""
        n, others = values.shape[1], self.k - 1
        weights = [self.k * math.comb(n - int(c), others) / math.comb(n, others) for c in inputs.is_correct.sum(1)]
        return values * values.new_tensor(weights).unsqueeze(1)

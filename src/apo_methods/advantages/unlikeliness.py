"""The unlikeliness reward: of the right answers of a group, the less likely ones earn more."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.types import AdvantageInputs


@dataclass(frozen=True)
class Unlikeliness(Checked):
    """A shaping of rewards (see `Shaped`) by the rank of a completion's likelihood in its group.

        R_i ← R_i·(1 − coef·rank_i/G),   rank 0 … G − 1 by ascending mean log π_rollout, ties to the lower sample

    Only rewards above 0 change, and none in a group whose rewards are all equal, where the ranks alone would be
    normalised to advantages of ±1.

    Source: He et al. 2025 (arXiv 2506.02355), section 4; 0.25 is the value of the released script.

    Departure: the paper's factor is 1 − coef·(G − rank)/G with ranks by descending likelihood, which lowers every
    right answer by a further coef/G; likelihoods are the engine's, which need no forward.

    Attributes:
        coef: in [0, 1]; 0 leaves rewards as they are.

    Raises:
        ConfigError: a value outside its range.

    Example:
        Two of four are correct; the likelier one, of rank 3, loses 0.25·3/4 of its reward.

        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 1.0, 0.0, 0.0]]), is_correct=torch.ones(1, 4).bool(),
        ...     lengths=torch.ones(1, 4).long(), mean_logprobs=torch.tensor([[-3.0, -0.1, -2.0, -1.0]]))
        >>> Unlikeliness()(inputs)
        tensor([[1.0000, 0.8125, 0.0000, 0.0000]])
    """

    coef: Annotated[float | int, Within("[0, 1]", "such as 0.25")] = 0.25

    punishes_correct: ClassVar[bool] = True
    """In a group with few errors a likely right answer falls below the mean."""

    def __call__(self, inputs: AdvantageInputs) -> Float[Tensor, "prompts group"]:
        """The shaped rewards."""
        assert inputs.mean_logprobs is not None
        rewards = inputs.rewards
        ranks = inputs.mean_logprobs.argsort(dim=1, stable=True).argsort(dim=1)
        factors = 1 - self.coef * ranks.to(rewards.dtype) / rewards.shape[1]
        changes = (rewards > 0) & (rewards != rewards[:, :1]).any(dim=1, keepdim=True)
        return torch.where(changes, rewards * factors, rewards)

"""Differential smoothing: flatten the distribution over right answers, sharpen that over wrong ones."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.types import AdvantageInputs


@dataclass(frozen=True)
class DifferentialSmoothing(Checked):
    """An adjustment of advantages (see `Adjusted`) by the log-probability of the whole completion.

        A ← A − correct_coef·log π_rollout(y)   where correct,   A + incorrect_coef·log π_rollout(y)   elsewhere

    Since log π < 0, correct completions gain, unlikely ones more; wrong ones lose, unlikely ones more. No sign changes,
    so this combines with APO. Groups whose rewards are all equal train too.

    Source: Gai et al. 2025 (arXiv 2511.19942), Eq. 6 (DS-GRPO).

    Departure: likelihoods are the engine's, which need no forward; the equation has the trainer's π_old.

    Attributes:
        correct_coef: γ_p ≥ 0. log π is a sum over tokens, so a useful value falls with their number.
        incorrect_coef: γ_n ≥ 0.

    Raises:
        ConfigError: a value outside its range.

    Example:
        Two tokens of −1 nat each.

        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 0.0]]), is_correct=torch.tensor([[True, False]]),
        ...     lengths=torch.tensor([[2, 2]]), mean_logprobs=torch.tensor([[-1.0, -1.0]]))
        >>> DifferentialSmoothing(correct_coef=0.1, incorrect_coef=0.2)(inputs, torch.tensor([[1.0, -1.0]]))
        tensor([[ 1.2000, -1.4000]])
    """

    correct_coef: Annotated[float | int, Within("[0, inf)", "since the verdict decides the sign")]
    incorrect_coef: Annotated[float | int, Within("[0, inf)", "since the verdict decides the sign")]

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A ∓ coef·log π."""
        assert inputs.mean_logprobs is not None
        logprobs = (inputs.mean_logprobs * inputs.lengths).to(values.dtype)
        return values + torch.where(inputs.is_correct, -self.correct_coef * logprobs, self.incorrect_coef * logprobs)

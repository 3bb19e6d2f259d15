"""UCPO: the advantage of the right answers is shared among them, more to the less likely ones."""

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Checked, Within
from apo_lightning.types import AdvantageInputs


@dataclass(frozen=True)
class UniformCorrect(Checked):
    """An adjustment of advantages that makes all right answers of a group equally likely in the long run.

        A_i ← A_i·(1 − tau + tau·n·v_i)   on the n correct of a group,   v = softmax(−ℓ) over them

    where ℓ is the mean log-prob over a completion's tokens. The factors are positive and their mean over the group's
    correct completions is 1, so their total advantage stays; the advantages of errors stay too. With one correct
    completion nothing changes.

    Source: Lochab et al. 2026 (arXiv 2605.00365), from the released code, `adv_estimator=iq`, which has
    v_i = q_i⁻¹/Σ q_j⁻¹ with q = softmax(ℓ): the same.

    Departure: ℓ is the engine's; the code clamps q at 1e-6, which ℓ would need a spread of 14 nats to reach.

    Attributes:
        tau: in [0, 1]; 0 leaves advantages as they are. 0.2 is the value of the released scripts.

    Raises:
        ConfigError: a value outside its range.

    Example:
        Two correct completions, one three times as likely per token: v = (1/4, 3/4).

        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 1.0, 0.0]]), lengths=torch.ones(1, 3).long(),
        ...     is_correct=torch.tensor([[True, True, False]]), mean_logprobs=torch.tensor([[0.3, 0.1, 0.9]]).log())
        >>> UniformCorrect(tau=1.0)(inputs, torch.tensor([[1.0, 1.0, -2.0]]))
        tensor([[ 0.5000,  1.5000, -2.0000]])
    """

    tau: Annotated[float | int, Within("[0, 1]", "such as 0.2")] = 0.2

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A times the factor, where correct."""
        assert inputs.mean_logprobs is not None
        correct = inputs.is_correct
        # The softmax of a group without a correct completion is NaN and used nowhere.
        shares = (-inputs.mean_logprobs.to(values.dtype)).masked_fill(~correct, -torch.inf).softmax(1)
        factors = 1 - self.tau + self.tau * (correct.sum(1, keepdim=True) * shares)
        return torch.where(correct, values * factors, values)

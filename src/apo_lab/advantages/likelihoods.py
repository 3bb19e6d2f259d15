"""Adjustments by the likelihood of a completion under the policy that sampled it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs

Values = Float[Tensor, "prompts group"]


@dataclass(frozen=True)
class DifferentialSmoothing:
    """An adjustment of advantages (see `Adjusted`) by the log-probability of the whole completion.

        A ← A − correct_coef·log π_rollout(y)   where correct,   A + incorrect_coef·log π_rollout(y)   elsewhere

    Since log π < 0, correct completions gain, unlikely ones more; wrong ones lose, unlikely ones more. No sign changes,
    so this combines with APO. Groups whose rewards are all equal train too.

    Source: Gai et al. 2025 (arXiv 2511.19942), Eq. 6 (DS-GRPO).

    Departure: likelihoods are the engine's, which need no forward; the equation has the trainer's π_old.

    Attributes:
        correct_coef: γ_p ≥ 0. log π is a sum over tokens, so a useful value falls with their number.
        incorrect_coef: γ_n ≥ 0.

    Example:
        Two tokens of −1 nat each.

        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 0.0]]), is_correct=torch.tensor([[True, False]]),
        ...     lengths=torch.tensor([[2, 2]]), mean_logprobs=torch.tensor([[-1.0, -1.0]]))
        >>> DifferentialSmoothing(correct_coef=0.1, incorrect_coef=0.2)(inputs, torch.tensor([[1.0, -1.0]]))
        tensor([[ 1.2000, -1.4000]])
    """

    correct_coef: float | int
    incorrect_coef: float | int

    def __post_init__(self) -> None:
        for name, coef in (("correct_coef", self.correct_coef), ("incorrect_coef", self.incorrect_coef)):
            if not 0 <= coef < float("inf"):
                raise ConfigError(f"{name} is {coef}: give a finite number of at least 0; the sign is the verdict's")

    def __call__(self, inputs: AdvantageInputs, values: Values) -> Values:
        """A ∓ coef·log π."""
        assert inputs.mean_logprobs is not None
        logprobs = (inputs.mean_logprobs * inputs.lengths).to(values.dtype)
        return values + torch.where(inputs.is_correct, -self.correct_coef * logprobs, self.incorrect_coef * logprobs)


@dataclass(frozen=True)
class UniformCorrect:
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

    Example:
        Two correct completions, one three times as likely per token: v = (1/4, 3/4).

        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 1.0, 0.0]]), lengths=torch.ones(1, 3).long(),
        ...     is_correct=torch.tensor([[True, True, False]]), mean_logprobs=torch.tensor([[0.3, 0.1, 0.9]]).log())
        >>> UniformCorrect(tau=1.0)(inputs, torch.tensor([[1.0, 1.0, -2.0]]))
        tensor([[ 0.5000,  1.5000, -2.0000]])
    """

    tau: float | int = 0.2

    def __post_init__(self) -> None:
        if not 0 <= self.tau <= 1:
            raise ConfigError(f"tau is {self.tau}: give a share in [0, 1], such as 0.2")

    def __call__(self, inputs: AdvantageInputs, values: Values) -> Values:
        """A times the factor, where correct."""
        assert inputs.mean_logprobs is not None
        correct = inputs.is_correct
        # The softmax of a group without a correct completion is NaN and used nowhere.
        shares = (-inputs.mean_logprobs.to(values.dtype)).masked_fill(~correct, -torch.inf).softmax(1)
        factors = 1 - self.tau + self.tau * (correct.sum(1, keepdim=True) * shares)
        return torch.where(correct, values * factors, values)


@dataclass(frozen=True)
class Unlikeliness:
    """A shaping of rewards (see `Shaped`) by the rank of a completion's likelihood in its group.

        R_i ← R_i·(1 − coef·rank_i/G),   rank 0 … G − 1 by ascending mean log π_rollout, ties to the lower sample

    Only rewards above 0 change, and none in a group whose rewards are all equal, where the ranks alone would be
    normalised to advantages of ±1.

    Source: He et al. 2025 (arXiv 2506.02355), section 4; 0.25 is the value of the released script.

    Departure: the paper's factor is 1 − coef·(G − rank)/G with ranks by descending likelihood, which lowers every
    right answer by a further coef/G; likelihoods are the engine's, which need no forward.

    Attributes:
        coef: in [0, 1]; 0 leaves rewards as they are.

    Example:
        Two of four are correct; the likelier one, of rank 3, loses 0.25·3/4 of its reward.

        >>> inputs = AdvantageInputs(rewards=torch.tensor([[1.0, 1.0, 0.0, 0.0]]), is_correct=torch.ones(1, 4).bool(),
        ...     lengths=torch.ones(1, 4).long(), mean_logprobs=torch.tensor([[-3.0, -0.1, -2.0, -1.0]]))
        >>> Unlikeliness()(inputs)
        tensor([[1.0000, 0.8125, 0.0000, 0.0000]])
    """

    coef: float | int = 0.25

    punishes_correct: ClassVar[bool] = True
    """In a group with few errors a likely right answer falls below the mean."""

    def __post_init__(self) -> None:
        if not 0 <= self.coef <= 1:
            raise ConfigError(f"coef is {self.coef}: give a share of the reward in [0, 1], such as 0.25")

    def __call__(self, inputs: AdvantageInputs) -> Values:
        """The shaped rewards."""
        assert inputs.mean_logprobs is not None
        rewards = inputs.rewards
        ranks = inputs.mean_logprobs.argsort(dim=1, stable=True).argsort(dim=1)
        factors = 1 - self.coef * ranks.to(rewards.dtype) / rewards.shape[1]
        changes = (rewards > 0) & (rewards != rewards[:, :1]).any(dim=1, keepdim=True)
        return torch.where(changes, rewards * factors, rewards)

"""Clip-Cov and KL-Cov: restrict the few tokens whose covariance of advantage and log-prob drives entropy down."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Within
from apo_lightning.contracts import Recipe
from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, applicable
from apo_lightning.losses.functional import Number, importance_ratio, log_ratio
from apo_lightning.types import LossInputs, LossOutput, Needs
from apo_methods.losses.minibatch_tokens import MarkingGRPO, MinibatchTokens


@dataclass(frozen=True, kw_only=True)
class CovarianceGRPO(MarkingGRPO):
    """What Clip-Cov and KL-Cov share: a few tokens of every mini-batch are marked by their covariance.

        cov = (A − mean A)·(ℓ − mean ℓ),   ℓ = log π_rollout(y),   means over the kept tokens of the mini-batch

    Departure: the released code takes the current log π, and the means over a micro-batch. ℓ is known before the update
    and, as a mean over the mini-batch, does not depend on how it is split.

    Attributes:
        fraction: of the mini-batch's tokens that are marked, in (0, 1]; at least one is.

    Raises:
        ConfigError: a value outside its range.
    """

    fraction: Annotated[Number, Within("(0, 1]", "such as 2e-4")] = 2e-4

    @property
    def needs(self) -> Needs:
        """The loss reads the column that `apo_methods.parts.TokenMarks` fills by `marks`."""
        return super().needs | Needs(columns=frozenset({"marks"}))

    def num_marked(self, tokens: MinibatchTokens) -> int:
        """How many tokens of a mini-batch are marked."""
        return max(int(self.fraction * tokens.num_tokens), 1)


@dataclass(frozen=True, kw_only=True)
class ClipCov(CovarianceGRPO):
    """Clip-Cov: random tokens among those of high covariance leave the objective.

    Candidates have A ≠ 0 and lowest < cov < highest; `fraction` of all tokens are taken from them at random, and their
    A is 0. They keep their place in the denominator.

    Source: Cui et al. 2025 (arXiv 2505.22617), section 4.2; values of the released scripts, with ε = 1.

    Departure: tokens that PPO clips stay candidates, since which those are is known only in the update.

    Metrics: those of GRPO, and `clip_cov_fraction`, 1 on marked tokens.

    Attributes:
        lowest: of the covariance, exclusive.
        highest: of the covariance, exclusive.

    Raises:
        ConfigError: a value outside its range.

    Example:
        >>> A, logprobs = torch.tensor([1.0, 1.0, -1.0, -1.0]), torch.tensor([-0.1, -2.0, -0.1, -4.0])
        >>> tokens = MinibatchTokens(advantages=A, is_correct=A > 0, logprobs=logprobs, keys=torch.arange(4))
        >>> covariance(tokens), ClipCov().marks(tokens)
        (tensor([ 1.4500, -0.4500, -1.4500,  2.4500]), tensor([1., 0., 0., 0.]))
    """

    lowest: Number = 1.0
    highest: Number = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.lowest < self.highest:
            raise ConfigError(f"lowest is {self.lowest}, not below highest, {self.highest}: no token is a candidate")

    def marks(self, tokens: MinibatchTokens) -> Float[Tensor, "tokens"]:
        """1 on the tokens that leave the objective."""
        values = covariance(tokens)
        candidates = (values > self.lowest) & (values < self.highest) & (tokens.advantages != 0)
        return tokens.smallest(torch.zeros_like(values), self.num_marked(tokens), candidates).to(values.dtype)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """GRPO's loss, with A = 0 on marked tokens."""
        marks = inputs.columns["marks"]
        output = GRPO.__call__(self, replace(inputs, advantages=torch.where(marks > 0, 0.0, inputs.advantages)))
        is_candidate = applicable(marks, inputs.advantages != 0)
        return replace(output, metrics={**output.metrics, "clip_cov_fraction": is_candidate})


@dataclass(frozen=True, kw_only=True)
class KLCov(CovarianceGRPO):
    """KL-Cov: the tokens of the highest covariance are held near the policy that sampled them.

        loss = GRPO + kl_coef·|log π − log π_old|   on the `fraction` of tokens with the largest cov

    Source: Cui et al. 2025 (arXiv 2505.22617), section 4.3; values of the released scripts.

    Departure: candidates have A ≠ 0, so that completions without a gradient need not be run.

    Metrics: those of GRPO, and `kl_cov_fraction`, 1 on marked tokens.

    Attributes:
        kl_coef: ≥ 0.
        clip: False: r·A without PPO's clip, as in the released code.

    Raises:
        ConfigError: a value outside its range; or one mini-batch a step, in which |log π − log π_old| is 0 and has no
            gradient.
    """

    fraction: Annotated[Number, Within("(0, 1]", "such as 2e-3")] = 2e-3
    kl_coef: Annotated[Number, Within("[0, inf)", "such as 1")] = 1.0
    clip: bool = True

    def check(self, recipe: Recipe) -> None:
        """Refuse one mini-batch a step."""
        if recipe.settings.minibatches_per_step == 1:
            raise ConfigError(
                "prompts_per_minibatch equals prompts_per_step: KL-Cov's penalty has no gradient in a step's first "
                "mini-batch, so with one it is GRPO; set prompts_per_minibatch to a half or less"
            )

    def marks(self, tokens: MinibatchTokens) -> Float[Tensor, "tokens"]:
        """1 on the tokens that are penalised."""
        values = covariance(tokens)
        return tokens.smallest(-values, self.num_marked(tokens), tokens.advantages != 0).to(values.dtype)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """GRPO's loss plus the penalty."""
        if self.clip:
            output = GRPO.__call__(self, inputs)
        else:
            ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs)
            nowhere = torch.zeros_like(inputs.is_correct)
            output = self.from_objective(inputs, ratio * inputs.advantages, nowhere, {"ratio_updated": ratio.detach()})
        marked = (inputs.columns["marks"] > 0) & (inputs.advantages != 0)
        penalty = torch.where(marked, log_ratio(inputs.logprobs, inputs.old_logprobs).abs(), 0.0)
        is_marked = applicable(marked.to(penalty.dtype), inputs.advantages != 0)
        return LossOutput(
            per_token=output.per_token + self.kl_coef * penalty,
            metrics={**output.metrics, "kl_cov_fraction": is_marked},
        )


def covariance(tokens: MinibatchTokens) -> Float[Tensor, "tokens"]:
    """(A − mean A)·(ℓ − mean ℓ) of each token; the means are over the mini-batch and all ranks."""
    centred = tokens.advantages - tokens.mean(tokens.advantages)
    return centred * (tokens.logprobs - tokens.mean(tokens.logprobs))

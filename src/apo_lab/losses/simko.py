"""SimKO: right answers raise the policy's top K, wrong ones are punished more at its favourite token."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPO, applicable, required
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, Number, gradient_of, importance_ratio, log_ratio
from apo_lightning.types import LossInputs, LossOutput, Needs


@dataclass(frozen=True, kw_only=True)
class SimKO(GRPO):
    """GRPO with another gradient at the uncertain tokens of a completion: those above its entropy's `quantile`.

        correct:  ρ = (1 − alpha)·r + (alpha/K)·Σ_{k ∈ top K} sg[r/r_k]·r_k,   r_k = π(k)/π_old(k)
        A < 0, y the policy's most likely token:  A ← top_penalty·A

    ρ has the value r, and its gradient is r·((1 − alpha)·∇log π(y) + (alpha/K)·Σ ∇log π(k)): the log-probs of the top K
    under π_old cancel. `alpha=0, top_penalty=1` is GRPO.

    Source: Peng et al. 2025 (arXiv 2510.14807), from the released code and its values.

    Departure: the top K is that of the current policy; the code divides its probabilities by those that the old policy
    gave to its own top K, which may be other tokens, and the quotient has no effect.

    Metrics: those of GRPO, and `simko_fraction`, 1 on tokens with another gradient, 0 on the others of A ≠ 0.

    Attributes:
        alpha: in [0, 1].
        top_k: K ≥ 1.
        quantile: in [0, 1).
        top_penalty: ≥ 1.

    Raises:
        ConfigError: a value outside its range.
    """

    alpha: Number = 0.01
    top_k: int = 3
    quantile: Number = 0.8
    top_penalty: Number = 1.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1:
            raise ConfigError(f"alpha is {self.alpha}: give a share of the gradient in [0, 1], such as 0.01")
        if self.top_k < 1:
            raise ConfigError(f"top_k is {self.top_k}: give at least 1")
        if not 0 <= self.quantile < 1:
            raise ConfigError(f"quantile is {self.quantile}: give a share of the tokens in [0, 1), such as 0.8")
        if not 1 <= self.top_penalty < float("inf"):
            raise ConfigError(f"top_penalty is {self.top_penalty}: give a finite factor of at least 1, such as 1.1")

    @property
    def needs(self) -> Needs:
        """The loss reads the policy's own top K, and which tokens of a completion are the uncertain ones."""
        return super().needs | Needs(candidate_size=self.top_k, entropy=True, completions=True)

    def completion_columns(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """`entropy_rank` of each token in its completion."""
        ranks = sequence_ranks(required(inputs.entropy, "entropy"), inputs.sequence_ids)
        return {**super().completion_columns(inputs), "entropy_rank": ranks}

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(ρ, A)."""
        candidates = required(inputs.candidate_logprobs, "candidate_logprobs")
        uncertain = inputs.columns["entropy_rank"] > self.quantile
        advantages = inputs.advantages
        likeliest = required(inputs.candidate_ids, "candidate_ids")[:, 0]
        punished = uncertain & (advantages < 0) & (inputs.token_ids == likeliest)
        ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs)
        frozen = log_ratio(inputs.logprobs, inputs.old_logprobs).abs() > LOG_RATIO_LIMIT
        smoothed = uncertain & inputs.is_correct & ~frozen
        towards = gradient_of(candidates.mean(1)) - gradient_of(inputs.logprobs)
        rho = ratio + torch.where(smoothed, self.alpha * ratio.detach() * towards, 0.0)
        changed = applicable((punished | smoothed).to(rho.dtype), advantages != 0)
        inputs = replace(inputs, advantages=torch.where(punished, self.top_penalty * advantages, advantages))
        return self.surrogate(inputs, rho, frozen, {"ratio_updated": ratio.detach(), "simko_fraction": changed})


def sequence_ranks(values: Float[Tensor, "tokens"], sequence_ids: Int[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """The share of the other tokens of its completion that have a lower value, at every token; 0 for a single one.

    A rank above q is a value above the completion's q-quantile (linear interpolation), where no values are equal.

    Example:
        >>> sequence_ranks(torch.tensor([1.0, 3.0, 1.0, 5.0]), torch.tensor([4, 4, 4, 7]))
        tensor([0., 1., 0., 0.])
    """
    _, place, counts = sequence_ids.unique_consecutive(return_inverse=True, return_counts=True)
    by_value = values.argsort(stable=True)
    order = by_value[place[by_value].argsort(stable=True)]
    # Sorted by completion, then by value: equal values have the place of the first of them.
    ordered, owner, places = values[order], place[order], torch.arange(len(values), device=values.device)
    is_new = torch.ones_like(owner, dtype=torch.bool)
    is_new[1:] = (ordered[1:] != ordered[:-1]) | (owner[1:] != owner[:-1])
    first = torch.where(is_new, places, 0).cummax(0).values if len(values) else places
    lower = torch.empty_like(values).scatter(0, order, (first - (counts.cumsum(0) - counts)[owner]).to(values.dtype))
    return lower / (counts - 1).clamp(min=1)[place]

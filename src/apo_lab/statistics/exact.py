"""Exact pass@k and Cover@τ, from a policy's probabilities of all valid answers of each problem."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.errors import ConfigError

DEAD = 1e-4
"""A branch with a lower probability counts as dead: fewer than one in ten thousand samples take it."""
THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 0.95)
"""The τ at which the curve is reported; pass@64 is above 1/2 where p(x) is above 0.011."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerScores:
    """Log-probs of the listed answers of P problems."""

    problem: Int[Tensor, "answers"]
    """In [0, P)."""
    strategy: Int[Tensor, "answers"]
    """In [0, number of strategies)."""
    is_valid: Bool[Tensor, "answers"]
    logprobs: Float[Tensor, "answers"]
    """log π of the whole answer with its end of sequence [nats]; float64, since very small ones are compared."""
    num_problems: int
    num_strategies: int

    @property
    def success(self) -> Float[Tensor, "problems"]:
        """p(x) = Σ_{valid a} π(a|x) in [0, 1], the probability that one sample is right."""
        return self._sum(self.problem, self.num_problems, self.is_valid)

    @property
    def listed(self) -> Float[Tensor, "problems"]:
        """Σ_{listed a} π(a|x) in [0, 1]; for locks, the probability that the digits fit the strategy."""
        return self._sum(self.problem, self.num_problems, torch.ones_like(self.is_valid))

    @property
    def valid_mass(self) -> Float[Tensor, "problems strategies"]:
        """Each strategy's contribution to p(x)."""
        return self._table(self.is_valid)

    @property
    def listed_mass(self) -> Float[Tensor, "problems strategies"]:
        """Each strategy's contribution to `listed`."""
        return self._table(torch.ones_like(self.is_valid))

    @property
    def has_valid(self) -> Bool[Tensor, "problems strategies"]:
        """Whether a strategy has a valid answer."""
        found = torch.zeros(self.num_problems, self.num_strategies, dtype=torch.bool)
        found[self.problem[self.is_valid], self.strategy[self.is_valid]] = True
        return found

    def _table(self, wanted: Bool[Tensor, "answers"]) -> Float[Tensor, "problems strategies"]:
        cell = self.problem * self.num_strategies + self.strategy
        return self._sum(cell, self.num_problems * self.num_strategies, wanted).view(self.num_problems, -1)

    def _sum(self, index: Tensor, size: int, wanted: Tensor) -> Tensor:
        # The answers are distinct, but rounding of float32 log-probs can lift the sum above 1.
        masses = torch.where(wanted, self.logprobs.double().exp(), 0.0)
        return torch.zeros(size, dtype=torch.float64).index_add_(0, index, masses).clamp(max=1.0)


def exact_pass_at_k(success: Float[Tensor, "*problems"], k: int) -> Float[Tensor, "*problems"]:
    """1 − (1 − p)^k: the probability that one of k independent samples is right.

    Raises:
        ConfigError: k is below 1.

    Example:
        >>> exact_pass_at_k(torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64), 2).tolist()
        [0.75, 0.0, 1.0]
    """
    if k < 1:
        raise ConfigError(f"pass@{k}: k must be at least 1")
    # (1 − p) ** k would lose a p below the spacing of floats around 1.
    return -torch.expm1(k * torch.log1p(-success.double()))


def cover_curve(success: Float[Tensor, "problems"], thresholds: Sequence[float] = THRESHOLDS) -> dict[str, float]:
    """`cover@τ` for each τ in (0, 1]: the share of problems with p(x) ≥ τ, in [0, 1]; it falls with τ.

    Its integral over τ is pass@1, the mean of p(x). pass@k is its mean with the weight k(1 − τ)^{k−1}, which lies near
    τ = 0 for large k.

    Source: Dragoi et al. 2025, "Beyond Pass@k: breadth-depth metrics for reasoning boundaries" (arXiv 2510.08325).
    Departure: p(x) is exact, where the source samples.

    Example:
        >>> cover_curve(torch.tensor([0.05, 0.5]), (0.01, 0.2, 0.8))
        {'cover@0.01': 1.0, 'cover@0.2': 0.5, 'cover@0.8': 0.0}
    """
    return {f"cover@{threshold:g}": (success >= threshold).double().mean().item() for threshold in thresholds}


def strategy_entropy(mass: Float[Tensor, "problems strategies"]) -> Float[Tensor, "problems"]:
    """−Σ_s q_s log q_s of q = mass / Σ mass [nats] in [0, log S]; NaN without mass.

    For valid mass it is the entropy over ways to be right; policy gradient with deterministic verdicts never raises it.
    """
    share = mass / mass.sum(1, keepdim=True)
    return torch.special.entr(share).sum(1)


def exact_metrics(scores: AnswerScores, ks: Sequence[int]) -> dict[str, float]:
    """Metrics of one evaluation point, as means over problems.

    Returns:
        `pass@k` for each k; `valid_entropy` [nats], `strategy_entropy` of the valid mass; `strategy_entropy` [nats], of
        all listed mass; `listed`, mean of `AnswerScores.listed`; `alive`, the share of valid (problem, strategy) pairs
        that are retained, with a mass of at least `DEAD`.
    """
    success = scores.success
    metrics = {f"pass@{k}": exact_pass_at_k(success, k).mean().item() for k in ks}
    metrics["valid_entropy"] = strategy_entropy(scores.valid_mass).nanmean().item()
    metrics["strategy_entropy"] = strategy_entropy(scores.listed_mass).nanmean().item()
    metrics["listed"] = scores.listed.mean().item()
    metrics["alive"] = (scores.valid_mass[scores.has_valid] >= DEAD).double().mean().item()
    return metrics


def means_by_kind(
    kinds: Sequence[str], values: Mapping[str, Float[Tensor, "tokens"]], weights: Float[Tensor, "tokens"]
) -> dict[str, float]:
    """Means of token statistics for each kind of token, by `<name>/<kind>`; NaN for a kind without weight.

    `weights` are the policy's probabilities of reaching each token.
    """
    means = {}
    for kind in dict.fromkeys(kinds):
        here = torch.tensor([other == kind for other in kinds])
        total = weights[here].double().sum()
        for name, value in values.items():
            means[f"{name}/{kind}"] = ((value[here].double() * weights[here].double()).sum() / total).item()
    return means

"""PKPO: unbiased gradients of pass@k, for any rewards."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages.estimator import keep_all
from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs, Advantages

BASELINES = ("loo", "loo_centred", "loo_minus_one")


@dataclass(frozen=True)
class PKPO:
    """Pass-at-k policy optimisation: what a completion adds to the best of k, minus a baseline from the others.

        A_i = n·(s_i − b_i)
        s_i = Σ_{I∋i, |I|=k} max_I r / C(n, k)      ρ_k = Σ_{|I|=k} max_I r / C(n, k),   the estimate of max@k

    | `baseline` | b_i, from the group without i | k | |
    |---|---|---|---|
    | `loo` | k/(n − 1)·ρ_k | < n | Eq. 29; pushes every completion of an all-correct group down |
    | `loo_centred` | k/n·ρ_k | < n | sums to 0; with rewards 0 and 1 A ≥ 0 where correct and ≤ 0 where wrong |
    | `loo_minus_one` | k/n·ρ_{k−1} | 2 … n | Eq. 33; with rewards 0 and 1 no A is negative; k = n is best of n |

    All three are unbiased. k = 1 with `loo_centred` is RLOO. n·`loo_centred` is `PassAtK` times k·n/(n − k)·σ.

    Source: Walder and Karkhanis 2025 (arXiv 2505.15201), Eqs. 18, 29 and 33.

    Departure: n·s_i, since the paper sums over samples where losses average; `loo_centred` is ours.

    Attributes:
        k: of the first step.
        later_k: step → k from that step on; the paper goes from 8 to 1 in mid-run.
        baseline: one of `BASELINES`.

    Raises:
        ConfigError: a value outside its range.

    Example:
        n = 4, c = 1, k = 2, centred: correct 2·(1 − ρ), ρ = 0 without it; wrong 2·(1/3 − 2/3).

        >>> rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
        >>> lengths = torch.ones_like(rewards, dtype=torch.long)
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=lengths)
        >>> PKPO(k=2)(inputs).values
        tensor([[ 2.0000, -0.6667, -0.6667, -0.6667]])
    """

    k: int
    later_k: Mapping[int, int] = field(default_factory=dict)
    baseline: str = "loo_centred"

    def __post_init__(self) -> None:
        if self.baseline not in BASELINES:
            raise ConfigError(f"baseline is {self.baseline!r}: choose one of {', '.join(BASELINES)}")
        lowest = 2 if self.baseline == "loo_minus_one" else 1
        for k in (self.k, *self.later_k.values()):
            if k < lowest:
                raise ConfigError(f"k is {k}: with baseline={self.baseline} give at least {lowest}")

    @property
    def spares_errors(self) -> bool:
        """`loo_minus_one` gives no completion A < 0."""
        return self.baseline == "loo_minus_one"

    @property
    def punishes_correct(self) -> bool:
        """`loo` does in easy groups."""
        return self.baseline == "loo"

    def check(self, group_size: int) -> None:
        """Refuse a k for which the baseline is not defined."""
        most = group_size if self.baseline == "loo_minus_one" else group_size - 1
        for k in (self.k, *self.later_k.values()):
            if k > most:
                raise ConfigError(
                    f"k is {k} with group_size {group_size}: with baseline={self.baseline} give at most {most}"
                )

    def __call__(self, inputs: AdvantageInputs) -> Advantages:
        """A of every completion."""
        self.check(inputs.rewards.shape[1])
        k = self.k
        for step in sorted(step for step in self.later_k if step <= inputs.step):
            k = self.later_k[step]
        values = [self._advantages(group, k) for group in inputs.rewards.double()]
        return keep_all(torch.stack(values).to(inputs.rewards.dtype))

    def _advantages(self, rewards: Float[Tensor, "group"], k: int) -> Float[Tensor, "group"]:
        n = len(rewards)
        factor = k / (n - 1) if self.baseline == "loo" else k / n
        others = k - 1 if self.baseline == "loo_minus_one" else k
        baselines = [max_at_k(torch.cat([rewards[:i], rewards[i + 1 :]]), others) for i in range(n)]
        return n * (_shares(rewards, k) - factor * torch.stack(baselines))


def max_at_k(rewards: Float[Tensor, "group"], k: int) -> Float[Tensor, ""]:
    """The expected maximum of k of the rewards, drawn without replacement; of 0 and 1 it is pass@k.

    Example:
        >>> max_at_k(torch.tensor([0.0, 0.0, 1.0]), 2)
        tensor(0.6667)
    """
    n = len(rewards)
    weights = [math.comb(place, k - 1) / math.comb(n, k) for place in range(n)]
    return (rewards.sort().values * rewards.new_tensor(weights)).sum()


def _shares(rewards: Float[Tensor, "group"], k: int) -> Float[Tensor, "group"]:
    """s_i; equal rewards have equal shares, whatever their order."""
    n, subsets = len(rewards), math.comb(len(rewards), k)
    ordered, order = rewards.sort()
    own = rewards.new_tensor([math.comb(place, k - 1) / subsets for place in range(n)]) * ordered
    below = [math.comb(place - 1, k - 2) / subsets if place >= 1 and k >= 2 else 0.0 for place in range(n)]
    above = rewards.new_tensor(below) * ordered
    later = above.flip(0).cumsum(0).flip(0) - above
    return torch.empty_like(rewards).scatter(0, order, own + later)

"""A gate by history: prompts whose pass@k is saturated no longer train."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.types import AdvantageInputs, Needs


@dataclass(frozen=True)
class BoundaryGate:
    """An adjustment of advantages: 0 on prompts that can hardly add to pass@k any more.

        u(m, n) = E[k·(1 − p)^(k−1)],   p ~ Beta(m + 1, n − m + 1)
                = k·Π_{j=1}^{k−1} (n − m + j)/(n + 1 + j)
        A ← 0   where u(m, n) < threshold·u(0, n)

    for m of n completions of the prompt correct, over its history and this step's group. u is the posterior mean of
    ∂pass@k/∂p under a uniform prior; u(0, n), its largest value, belongs to a prompt that was never solved. Gated
    completions stay in every denominator. With `SignedReward` as the estimator prompts without any success train.

    Source: after Bayesian Boundary Gating, Yuan et al. 2026 (arXiv 2606.15455), Eq. 8 for u.

    Departure: the gate alone, on the advantages of any estimator; u counts earlier policies' completions too. Its
    threshold is relative to u(0, n), since a fixed one would shut out prompts that were never solved once n is large.

    Attributes:
        k: ≥ 1; at k = 1 no prompt is ever gated.
        threshold: in [0, 1]; 0 gates nothing.

    Raises:
        ConfigError: a value outside its range.

    Example:
        k = 2: u(1, 1)/u(0, 1) = (1·2/3)/(2·2/3) = 1/2.

        >>> boundary_utility(0, 1, 2), boundary_utility(1, 1, 2)
        (1.3333333333333333, 0.6666666666666666)
    """

    k: int
    threshold: float | int

    needs: ClassVar[Needs] = Needs(history=True)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"k is {self.k}: pass@k needs a k of at least 1")
        if not 0 <= self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}: give a share in [0, 1], such as 0.01")

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A, or 0 where the prompt is gated."""
        assert inputs.history is not None
        gated = []
        for record, correct in zip(inputs.history, inputs.is_correct.sum(1).tolist(), strict=True):
            n, m = record.num_sampled + values.shape[1], record.num_correct + correct
            gated.append(boundary_utility(m, n, self.k) < self.threshold * boundary_utility(0, n, self.k))
        return values.masked_fill(inputs.is_correct.new_tensor(gated).unsqueeze(1), 0.0)


def boundary_utility(num_correct: int, num_sampled: int, k: int) -> float:
    """u(m, n): the posterior mean of k·(1 − p)^(k−1) under a uniform prior; see `BoundaryGate`."""
    utility = float(k)
    for j in range(1, k):
        utility *= (num_sampled - num_correct + j) / (num_sampled + 1 + j)
    return utility

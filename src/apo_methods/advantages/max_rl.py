"""MaxRL: advantages in units of the group's pass rate, a gradient of log pass@1 in place of pass@1."""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages.estimator import EPSILON, require_binary
from apo_lightning.types import AdvantageInputs, Needs


@dataclass(frozen=True)
class MaxRL:
    """An adjustment that divides advantages by the mean reward of their group, r̄.

        A ← A/(r̄ + 1e-6);   of `GroupNormalized(normalize_std=False)`:  A = (r − r̄)/(r̄ + 1e-6)

    0 in groups without a right completion, and in those without a wrong one. Up to the 1e-6 the expected gradient is
    that of log p, p the chance to be right, with its series cut behind order n − 1, for n completions:

        E[gradient] = ∇p·Σ_{k=1}^{n−1} (1 − p)^(k−1) = ∇(−Σ_{k=1}^{n−1} (1 − p)^k/k)

    With A = −1 in groups without a right completion, which is what r̄ as a baseline asks for, it would be order n; that
    these groups have A = 0 costs one order.

    Source: Tajwar et al. 2026 (arXiv 2602.02710); the formula from their code (`p_normalization`) and SkyRL's
    (`maxrl`), whose values are ours to the bit; prime-rl's (`max_rl`) has no 1e-6. The paper itself was not read; the
    expectation is ours.

    Departure: a reward other than 0 and 1 is refused.

    Raises:
        ConfigError: a reward is neither 0 nor 1.

    Example:
        One of four is right: r̄ = 1/4.

        >>> import torch
        >>> from apo_lightning.advantages import GroupNormalized
        >>> rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
        >>> inputs = AdvantageInputs(rewards=rewards, is_correct=rewards > 0, lengths=torch.ones(1, 4).long())
        >>> MaxRL()(inputs, GroupNormalized(normalize_std=False)(inputs).values)
        tensor([[ 3.0000, -1.0000, -1.0000, -1.0000]])
    """

    needs: ClassVar[Needs] = Needs(binary_rewards=True)

    def __call__(
        self, inputs: AdvantageInputs, values: Float[Tensor, "prompts group"]
    ) -> Float[Tensor, "prompts group"]:
        """A/(r̄ + 1e-6)."""
        require_binary(inputs.rewards, "MaxRL")
        return values / (inputs.rewards.mean(1, keepdim=True) + EPSILON)

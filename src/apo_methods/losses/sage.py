"""SAGE: the KL penalty's reference is reshaped by a guide, so that it holds the policy less at uncertain tokens."""

from dataclasses import dataclass, replace
from typing import Annotated

from jaxtyping import Float
from torch import Tensor

from apo_lightning.common.ranges import Within
from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPOKL, required
from apo_lightning.losses.functional import Number
from apo_lightning.types import LossInputs, Needs


@dataclass(frozen=True, kw_only=True)
class SAGE(GRPOKL):
    """GRPO plus a KL penalty towards q·π_ref, with the branch-level guide q.

        q = min(1 + guide_ratio·max(0, H − guide_threshold), highest_guide)
        loss = GRPO + kl_coef·k3(log π_ref + log q − log π),   k3(Δ) = e^Δ − Δ − 1

    H is the entropy of the current policy [nats], held constant. q ≥ 1 at branching tokens raises the sampled token's
    target there; q·π_ref is not normalised. `guide_ratio=0` is `GRPOKL`.

    Source: Lee et al. 2026 (arXiv 2605.18864), from the released code, `guide: branch` and its values.

    Departure: the other guides of the code (random, surprisal) draw from a generator and are left out; its lower bound
    of 0.6 never acts, since q ≥ 1.

    Metrics: those of `GRPOKL`.

    Attributes:
        guide_ratio: ≥ 0, per nat above the threshold.
        guide_threshold: of the entropy [nats].
        highest_guide: ≥ 1.

    Raises:
        ConfigError: a value outside its range, or `kl_estimator=full`, which does not read the guide.
    """

    kl_coef: Annotated[Number, Within("[0, inf)")] = 0.05
    kl_clamp: Annotated[Number | None, Within("(0, inf]", "or null for none")] = None
    guide_ratio: Annotated[Number, Within("[0, inf)", "such as 0.3")] = 0.3
    guide_threshold: Number = 1.2
    highest_guide: Annotated[Number, Within("[1, inf]", "such as 1.4")] = 1.4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kl_estimator == "full":
            raise ConfigError(
                "kl_estimator is full: SAGE's guide acts on the sampled token, choose k1, k2, k3 or k3_plus"
            )

    @property
    def needs(self) -> Needs:
        """The loss reads the policy's entropy too."""
        return super().needs | Needs(entropy=True)

    def penalty(self, inputs: LossInputs) -> Float[Tensor, "tokens"]:
        """The KL estimate from q·π_ref."""
        guide = self.guide(required(inputs.entropy, "entropy").detach())
        shaped = required(inputs.ref_logprobs, "ref_logprobs") + guide.log()
        return super().penalty(replace(inputs, ref_logprobs=shaped))

    def guide(self, entropy: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """q.

        Example:
            >>> import torch
            >>> SAGE().guide(torch.tensor([0.5, 2.2, 9.0]))
            tensor([1.0000, 1.3000, 1.4000])
        """
        raised = 1 + self.guide_ratio * (entropy - self.guide_threshold).clamp(min=0)
        return raised.clamp(max=self.highest_guide)

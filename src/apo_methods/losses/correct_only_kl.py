"""GRPO-KL whose penalty acts on right completions alone."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses import GRPOKL
from apo_lightning.types import LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True)
class CorrectOnlyKL(GRPOKL):
    """GRPO plus a penalty for leaving the reference on the tokens of completions that were judged right.

        loss = GRPO + kl_coef·KL   where right

    Completions of A = 0 are penalised too, if they are right. With 0/1 rewards the penalties of this loss and of
    `GRPOKL(error_only=True)` add up to that of `GRPOKL` on all tokens of A ≠ 0.

    Source: none; the fourth cell beside no penalty, one on errors, and one on all tokens.

    Departure: this is not CoKL (Wang et al. 2026, arXiv 2608.01743), which could be read in summaries and others' code
    alone. By these it is KL(π_ref(·|right)‖π(·|right)) of whole completions: stored right completions of the reference
    are raised, and right ones of the policy lowered by as much, so that the chance to be right stays free.

    Metrics: those of `GRPOKL`; `kl_updated` on right completions.

    Raises:
        ConfigError: `error_only`, which is the opposite.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.error_only:
            raise ConfigError("error_only is true: the penalty of CorrectOnlyKL is on right completions; use GRPOKL")

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(r, A) + kl_coef·KL, where right."""
        output = super().__call__(inputs)
        kl = output.metrics["kl_updated"].masked_fill(~inputs.is_correct, torch.nan)
        return replace(output, metrics={**output.metrics, "kl_updated": kl})

    def penalty(self, inputs: LossInputs) -> Float[Tensor, "tokens"]:
        """The KL from the reference [nats] where right, 0 elsewhere."""
        return torch.where(inputs.is_correct, super().penalty(inputs), 0.0)

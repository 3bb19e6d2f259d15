"""GRPO with a forward KL from the reference, over its top-K tokens and one bucket for the rest."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.errors import ConfigError
from apo_lightning.losses import PenalisedGRPO, required
from apo_lightning.losses.functional import Number, log_mass
from apo_lightning.types import LossInputs, Needs

LEAST_OUTSIDE = 1e-6
"""Of the mass outside T_K, in nats of −log of the mass inside: log(1 − J) stays finite in float32."""


@dataclass(frozen=True, kw_only=True)
class TopKForwardKL(PenalisedGRPO):
    """GRPO plus a divergence that keeps every branch of the reference alive.

        loss = GRPO + kl_coef·D,   J = Σ_T π,   J_ref = Σ_T π_ref,   T the reference's top K
        D = Σ_T π_ref·log(π_ref/π) + (1 − J_ref)·log((1 − J_ref)/(1 − J))

    The last term is the tail as one bucket, so that D ≥ 0, 0 exactly where policy and reference agree on the partition,
    and at most KL(π_ref‖π). Its force on logit k ∈ T is π_ref(k) − π(k): it does not vanish with π(k), and needs no
    draw of k, unlike APO's pull and sampled estimators.

    Source: the mean-seeking KL of distillation (Hinton et al. 2015), cut to the top K with a bucket for the rest; the
    control for APO's pull on the same tokens.

    Metrics: those of GRPO, and `kl_updated` [nats] on the tokens that are penalised.

    Attributes:
        kl_coef: weight of the penalty, ≥ 0.
        anchor_size: K ≥ 1.
        error_only: penalise tokens of A < 0 alone. All tokens stay in the denominator.

    Raises:
        ConfigError: a value outside its range.
    """

    kl_coef: Number = 0.1
    anchor_size: int = 8
    error_only: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor_size < 1:
            raise ConfigError(f"anchor_size is {self.anchor_size}: give at least 1")

    @property
    def needs(self) -> Needs:
        """The loss reads the reference's top-K."""
        return super().needs | Needs(anchor_size=self.anchor_size)

    def penalty(self, inputs: LossInputs, penalised: Bool[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """The forward KL over T_K and the bucket."""
        anchor = required(inputs.anchor, "anchor")
        members = (anchor.token_ids >= 0) & (anchor.ref_logprobs > -torch.inf) & penalised.unsqueeze(1)
        return topk_forward_kl(anchor.logprobs, anchor.ref_logprobs.detach(), members)


def topk_forward_kl(
    logprobs: Float[Tensor, "tokens anchors"],
    ref_logprobs: Float[Tensor, "tokens anchors"],
    members: Bool[Tensor, "tokens anchors"],
) -> Float[Tensor, "tokens"]:
    """KL(π_ref‖π) on the partition into the members and one bucket for all other tokens.

    Returns:
        D ≥ 0 [nats]; 0 where there is no member.

    Example:
        π_ref = (1/2, 1/4, 1/4), π = (1/4, 1/4, 1/2), T the first: ½·log 2 + ½·log(½/¾) = 0.1438.

        >>> half, quarter = torch.tensor([[0.5]]).log(), torch.tensor([[0.25]]).log()
        >>> topk_forward_kl(quarter, half, torch.tensor([[True]]))
        tensor([0.1438])
    """
    present = members & (logprobs > -torch.inf)
    # Masked before the product: 0·∞ is NaN.
    reference, policy = torch.where(present, ref_logprobs, 0.0), torch.where(present, logprobs, 0.0)
    inside = (torch.where(present, reference.exp(), 0.0) * (reference - policy)).sum(1)
    tail, ref_tail = (_log_outside(log_mass(values, members)) for values in (logprobs, ref_logprobs))
    return inside + torch.where(members.any(1), ref_tail.exp() * (ref_tail - tail), 0.0)


def _log_outside(log_inside: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """log(1 − J) from log J."""
    return torch.log1p(-log_inside.clamp(max=-LEAST_OUTSIDE).exp())

"""What if APO's pull had another gradient? The shipped loss, given anchors whose gradient is scaled.

The values of all anchors stay as they are, so r_anchor and the gate are those of APO to the bit.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.losses import APO
from apo_lightning.losses.functional import anchor_log_ratio, anchor_set, log_mass
from apo_lightning.types import Anchor, LossInputs, LossOutput


def rescaled(anchor: Anchor, factor: Float[Tensor, "tokens anchors"]) -> Anchor:
    """The same anchors with `factor` times the gradient (straight-through)."""
    value = anchor.logprobs.detach()
    return replace(anchor, logprobs=value + factor.detach() * (anchor.logprobs - value))


@dataclass(frozen=True, kw_only=True)
class GateOnlyAPO(APO):
    """β in the gate alone: r_anchor shuts the clip, and pulls nothing."""

    gradient_mask = APO.gradient_mask

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """APO without the pull's gradient."""
        assert inputs.anchor is not None
        return super().__call__(
            replace(inputs, anchor=rescaled(inputs.anchor, torch.zeros_like(inputs.anchor.logprobs)))
        )


@dataclass(frozen=True, kw_only=True)
class LogMassAPO(APO):
    """The pull β·(q_S − π), the gradient of β·log r_anchor."""

    gradient_mask = APO.gradient_mask

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """APO whose anchors' gradient is divided by r_anchor."""
        assert inputs.anchor is not None
        anchor, members = inputs.anchor, _members(inputs)
        ratio = anchor_log_ratio(anchor.logprobs, anchor.ref_logprobs, members).exp()
        return super().__call__(replace(inputs, anchor=rescaled(anchor, (1 / ratio)[:, None].expand_as(members))))


@dataclass(frozen=True, kw_only=True)
class CrossEntropyAPO(APO):
    """The pull β·(Q* − π), the gradient of β·Σ_S Q*·log π with Q* = π_ref(·|S)."""

    gradient_mask = APO.gradient_mask

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """APO whose anchors' gradient is multiplied by Q*/(r_anchor·q_S)."""
        assert inputs.anchor is not None
        anchor, members = inputs.anchor, _members(inputs)
        target = anchor.ref_logprobs - log_mass(anchor.ref_logprobs, members)[:, None]
        share = anchor.logprobs - log_mass(anchor.logprobs, members)[:, None]
        ratio = anchor_log_ratio(anchor.logprobs, anchor.ref_logprobs, members)[:, None]
        factor = torch.where(members, (target - share - ratio).exp(), 0.0)
        return super().__call__(replace(inputs, anchor=rescaled(anchor, factor)))


def _members(inputs: LossInputs) -> Tensor:
    assert inputs.anchor is not None
    return anchor_set(inputs.anchor.token_ids, inputs.anchor.ref_logprobs, inputs.token_ids)

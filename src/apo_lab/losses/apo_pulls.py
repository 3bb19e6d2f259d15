"""APO with another pull: ablations that tell apart what its gate, its gradient and its clip do.

r_anchor has APO's value in all of them; only its gradient differs (straight-through), or where it acts.
"""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.losses import APO, applicable, required
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, anchor_log_ratio, anchor_set, log_mass
from apo_lightning.types import Anchor, LossInputs, LossOutput


@dataclass(frozen=True, kw_only=True)
class GateOnlyAPO(APO):
    """r_anchor shuts the clip, and pulls nothing: ρ = λ·r − β·sg[r_anchor].

    What remains of APO is its gate: errors whose alternatives are above κ times their reference are no longer pushed.
    `pull_coef=0` has no gate either.
    """

    def anchor_ratio(
        self, log_r_anchor: Float[Tensor, "tokens"], anchor: Anchor, members: Bool[Tensor, "tokens anchors"]
    ) -> Float[Tensor, "tokens"]:
        """r_anchor, held constant."""
        return log_r_anchor.detach().clamp(max=LOG_RATIO_LIMIT).exp()

    def pull_slope(self, r_anchor: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """0: no pull."""
        return torch.zeros_like(r_anchor)


@dataclass(frozen=True, kw_only=True)
class LogMassAPO(APO):
    """The pull is the gradient of β·log r_anchor, as strong where S is small as where it is large.

    As a force on the logits: β·(q_S − π), q_S = π(·|S), where APO's has r_anchor times that.
    """

    def anchor_ratio(
        self, log_r_anchor: Float[Tensor, "tokens"], anchor: Anchor, members: Bool[Tensor, "tokens anchors"]
    ) -> Float[Tensor, "tokens"]:
        """r_anchor, with the gradient of its log."""
        return _with_gradient_of(log_r_anchor, log_r_anchor)

    def pull_slope(self, r_anchor: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """1: whatever r_anchor is."""
        return torch.ones_like(r_anchor)


@dataclass(frozen=True, kw_only=True)
class CrossEntropyAPO(APO):
    """The pull is the gradient of β·Σ_S Q*·log π, towards the reference's shape within S: Q* = π_ref(·|S).

    As a force on the logits: β·(Q* − π). A rare anchor is pulled as strongly as its reference says, however rare the
    policy has made it, where APO's pull is proportional to π(k).
    """

    def anchor_ratio(
        self, log_r_anchor: Float[Tensor, "tokens"], anchor: Anchor, members: Bool[Tensor, "tokens anchors"]
    ) -> Float[Tensor, "tokens"]:
        """r_anchor, with the gradient of the cross-entropy."""
        present = members & (anchor.logprobs > -torch.inf)
        target = (anchor.ref_logprobs.detach() - log_mass(anchor.ref_logprobs.detach(), members).unsqueeze(1)).exp()
        # Masked before the product: 0·∞ is NaN.
        terms = torch.where(present, target, 0.0) * torch.where(present, anchor.logprobs, 0.0)
        return _with_gradient_of(terms.sum(1), log_r_anchor)

    def pull_slope(self, r_anchor: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """1: whatever r_anchor is."""
        return torch.ones_like(r_anchor)


@dataclass(frozen=True, kw_only=True)
class UngatedAPO(APO):
    """The pull is outside the clip: it continues where the push has stopped.

        loss = −objective(λ·r, A) − β·|A|·r_anchor   where triggered,   −objective(r, A) elsewhere

    The gradient is APO's wherever APO is neither saturated nor dual-clipped, so the difference between runs of the two
    is what the clip does. `clip_fraction` and `apo/saturated_fraction` describe the push.
    """

    gradient_mask, reference_mask = APO.gradient_mask, APO.reference_mask

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """The pushed surrogate minus the pull."""
        output = APO.__call__(replace(self, pull_coef=0.0), inputs)
        anchor = required(inputs.anchor, "anchor")
        triggered = self.reference_mask(inputs.advantages, inputs.is_correct)
        members = triggered.unsqueeze(1) & anchor_set(
            anchor.token_ids, anchor.ref_logprobs, inputs.token_ids, exclude_sampled=self.exclude_sampled
        )
        log_r_anchor = anchor_log_ratio(anchor.logprobs, anchor.ref_logprobs, members)
        size = inputs.advantages.abs() * self.pull_coef
        pull = size * self.anchor_ratio(log_r_anchor, anchor, members)
        if inputs.importance_weights is not None:
            pull = inputs.importance_weights.detach() * pull
        outside = (1 - log_mass(anchor.logprobs.detach(), members).exp()).clamp(min=0)
        strength = size * self.anchor_ratio(log_r_anchor, anchor, members).detach() * outside
        return LossOutput(
            per_token=output.per_token - torch.where(triggered, pull, 0.0),
            metrics={**output.metrics, "apo/pull": applicable(strength, triggered)},
        )


def _with_gradient_of(slope: Float[Tensor, "tokens"], log_r_anchor: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
    """r_anchor, whose gradient is that of `slope`; none where its log is clamped."""
    value = log_r_anchor.detach().clamp(max=LOG_RATIO_LIMIT).exp()
    return value + torch.where(log_r_anchor.detach() <= LOG_RATIO_LIMIT, slope - slope.detach(), 0.0)

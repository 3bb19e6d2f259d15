"""Anchored Policy Optimization: push an error down and, within the same trust region, pull the alternatives up."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.common.ranges import OneOf, Within
from apo_lightning.contracts import Recipe
from apo_lightning.errors import ConfigError
from apo_lightning.losses.functional import (
    LOG_RATIO_LIMIT,
    Number,
    anchor_log_ratio,
    anchor_set,
    importance_ratio,
    log_mass,
    log_ratio,
)
from apo_lightning.losses.policy_loss import PolicyLoss, applicable, required
from apo_lightning.types import Anchor, LossInputs, LossOutput, Needs, token_mask

TRIGGERS = {"negative_advantage": "negative_advantage", "incorrect": "incorrect", "always": "nonzero_advantage"}
"""The trigger, and the set of tokens that it triggers."""


@dataclass(frozen=True, kw_only=True)
class APO(PolicyLoss):
    """The clipped objective on a rectified ratio where a token belongs to an error, on the plain ratio elsewhere.

        S = T_K without y,   r_anchor = Σ_S π / Σ_S π_ref
        ρ = λ·r − β·r_anchor   where triggered,   ρ = r   elsewhere

    With `trigger="always"` a correct answer pulls too: ρ = r + β·r_anchor where A > 0, so that anchors rise there as
    well (the formula for errors would lower them).

    `push_coef=1, pull_coef=0` is GRPO, bit for bit. For any logit z_v of a triggered token, master identity:

        ∂ρ/∂z_v = π(v)·(c_v − ρ),   c_y = λ/π_old(y),   c_k = −β/Z_ref for k ∈ S,   0 otherwise

    *Saturation.* The objective of an error is flat below ρ = 1 − ε: at r = 1 push and pull both vanish once
    r_anchor > κ (`saturated_above`).

    Source: Wang et al. 2026, Eqs. 6-9 and 23.

    Departure: an empty S pulls nothing (the paper leaves it open); the gradient is that of the one-sided `min` of
    Eq. 23 (see `functional.clipped_objective`).

    Metrics, NaN outside triggered tokens except for the first two:
        `ratio_updated`: r. `apo/triggered_fraction`: 1 or 0.
        `apo/anchor_ratio`: r_anchor. `apo/ref_anchor_mass`: Z_ref. `apo/saturated_fraction`: 1 where ρ < 1 − ε, else 0.
        `apo/pull`: |A|·β·r_anchor·(1 − Σ_S π), the pull's size before token weights; NaN also where it has no gradient.

    Attributes:
        push_coef: λ > 0, on the ratio of the error itself.
        pull_coef: β ≥ 0, on the anchors; λ − β must exceed 1 − ε.
        anchor_size: K ≥ 1, how many of the reference's likeliest tokens form T_K.
        trigger: `negative_advantage`: A < 0. `incorrect`: A < 0 and the answer was judged wrong, for advantages that
            give correct answers A < 0 (of shaped rewards, say; `PassAtK` does not). `always`: every A ≠ 0.
        exclude_sampled: False keeps y among the anchors, the naive set of appendix C.1: the pull then raises the very
            token that the push lowers.

    Raises:
        ConfigError: a value outside its range, or coefficients under which no error could ever learn.
    """

    push_coef: Annotated[Number, Within("(0, inf)", "such as 1.05")] = 1.05
    pull_coef: Annotated[Number, Within("[0, inf)", "such as 0.1")] = 0.1
    anchor_size: Annotated[int, Within("[1, inf)", "or use algo=grpo for none")] = 8
    trigger: Annotated[str, OneOf(TRIGGERS)] = "negative_advantage"
    exclude_sampled: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        start, edge = self.push_coef - self.pull_coef, 1 - self.clip_eps
        if start <= edge + 1e-9:
            raise ConfigError(
                f"push_coef - pull_coef is {start:.6g}, not above 1 - clip_eps = {edge:.6g}: errors start on the flat "
                "part of the clip, so none would have a gradient; raise push_coef or lower pull_coef"
            )
        high = self.clip_eps if self.clip_eps_high is None else self.clip_eps_high
        if self.trigger == "always" and self.pull_coef >= high - 1e-9:
            raise ConfigError(
                f"pull_coef is {self.pull_coef}, not below the upper clip {high:.6g}: with trigger=always correct "
                "answers would start on its flat part; lower pull_coef"
            )

    def check(self, recipe: Recipe) -> None:
        """Refuse advantages under which nothing is triggered, or correct answers are."""
        if self.pull_coef == 0:
            return
        advantage, kind = recipe.advantage, type(recipe.advantage).__name__
        if getattr(advantage, "spares_errors", False) and self.trigger != "always":
            raise ConfigError(f"advantage {kind} gives no error A < 0, so that APO never acts: use GRPO's loss")
        if getattr(advantage, "punishes_correct", False) and self.trigger == "negative_advantage":
            raise ConfigError(
                f"trigger is negative_advantage, and advantage {kind} gives some correct answers A < 0: "
                "set algo.loss.trigger=incorrect"
            )

    @property
    def saturated_above(self) -> float:
        """The r_anchor beyond which a triggered token has neither push nor pull, at r = 1.

            κ = (λ − (1 − ε_low))/β,   ∞ where β = 0

        Source: Wang et al. 2026, from Eqs. 9 and 23.

        Example:
            >>> round(APO().saturated_above, 9), APO(pull_coef=0).saturated_above
            (2.5, inf)
        """
        return math.inf if self.pull_coef == 0 else (self.push_coef - (1 - self.clip_eps)) / self.pull_coef

    @property
    def needs(self) -> Needs:
        """The reference's top K on triggered tokens."""
        reads = Needs(anchor_size=self.anchor_size, reference_on=TRIGGERS[self.trigger])
        return replace(super().needs, gradient_on=self.surrogate_tokens) | reads

    @property
    def metric_defaults(self) -> Mapping[str, float]:
        """Skipped tokens are not triggered: a triggered one has A ≠ 0, and runs unless its completion is dropped."""
        return {"apo/triggered_fraction": 0.0}

    @property
    def medians(self) -> frozenset[str]:
        """r_anchor has a long tail."""
        return frozenset({"apo/anchor_ratio"})

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(ρ, A)."""
        anchor = self.anchors(inputs)
        triggered = self.triggered(inputs.advantages, inputs.is_correct)
        members = anchor_set(
            anchor.token_ids, anchor.ref_logprobs, inputs.token_ids, exclude_sampled=self.exclude_sampled
        )
        members = members & triggered.unsqueeze(1)
        ratio = importance_ratio(inputs.logprobs, inputs.old_logprobs)
        log_r_anchor = anchor_log_ratio(anchor.logprobs, anchor.ref_logprobs, members)
        r_anchor = self.anchor_ratio(log_r_anchor, anchor, members)
        is_error = triggered & (inputs.advantages < 0)
        pull_of_anchors = self.pull_coef * r_anchor
        rho = torch.where(triggered, ratio + pull_of_anchors, ratio)
        rho = torch.where(is_error, self.push_coef * ratio - pull_of_anchors, rho)

        mass = log_mass(anchor.logprobs.detach(), members).exp()
        slope = self.pull_slope(r_anchor.detach()) * members.any(1)
        pull = inputs.advantages.abs() * self.pull_coef * slope * (1 - mass).clamp(min=0)
        pulls = triggered & ~self.is_flat(rho, inputs.advantages)
        metrics = {
            "ratio_updated": ratio.detach(),
            "apo/triggered_fraction": triggered.to(rho.dtype),
            "apo/anchor_ratio": applicable(r_anchor, triggered),
            "apo/ref_anchor_mass": applicable(log_mass(anchor.ref_logprobs, members).exp(), triggered),
            "apo/saturated_fraction": applicable((rho < 1 - self.clip_eps).to(rho.dtype), is_error),
            "apo/pull": applicable(pull, pulls),
        }
        pull_moves = (self.pull_coef * slope > 0) & (log_r_anchor <= LOG_RATIO_LIMIT)
        push_moves = log_ratio(inputs.logprobs, inputs.old_logprobs).abs() <= LOG_RATIO_LIMIT
        return self.surrogate(inputs, rho, ~(push_moves | pull_moves), metrics)

    def triggered(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """Tokens on which ρ is rectified: those of errors, or all that can learn."""
        return token_mask(TRIGGERS[self.trigger], advantages, is_correct)

    def anchors(self, inputs: LossInputs) -> Anchor:
        """T_K."""
        return required(inputs.anchor, "anchor")

    def anchor_ratio(
        self, log_r_anchor: Float[Tensor, "tokens"], anchor: Anchor, members: Bool[Tensor, "tokens anchors"]
    ) -> Float[Tensor, "tokens"]:
        """r_anchor, with the gradient of the pull."""
        return log_r_anchor.clamp(max=LOG_RATIO_LIMIT).exp()

    def pull_slope(self, r_anchor: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """The gradient of `anchor_ratio` by log Σ_S π."""
        return r_anchor

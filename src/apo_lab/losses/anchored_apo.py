"""APO with other anchors, another pull, or one of its two forces: the grid's topology `ratio`."""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lab.losses.anchor_sets import drawn, prefix
from apo_lightning.common.ranges import OneOf, Within
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, applicable
from apo_lightning.losses.functional import LOG_RATIO_LIMIT, LOG_ZERO, Number, importance_ratio, log_mass, log_ratio
from apo_lightning.types import Anchor, LossInputs, LossOutput, Needs

ANCHOR_SOURCES = ("reference", "reference_top_p", "random")


@dataclass(frozen=True, kw_only=True)
class AnchoredAPO(APO):
    """APO, of which anchors, their weights and the forces are chosen.

    Attributes:
        anchor_source: T. `reference`: its top K. `reference_top_p`: the fewest of these that hold `top_p`. `random`: K
            tokens other than y by a hash, out of the reference's top `pool_size`.
        top_p: in (0, 1]; 1 is `reference`.
        pool_size: at least `anchor_size`.
        weights: r_anchor. `mass`: Σ_S π/Σ_S π_ref. `uniform`: mean_S π/π_ref. `geometric`: exp mean_S log(π/π_ref). Two
            have the value of `mass` and another gradient: `log_mass` that of log r_anchor, as strong where S is small
            as where it is large; `cross_entropy` that of Σ_S Q*·log π, Q* = π_ref(·|S), which does not fade with π(k).
        force: which of r and r_anchor have a gradient on triggered tokens; values and clip are APO's. `push_only`
            keeps APO's gate, which `pull_coef=0` has not.

    Raises:
        ConfigError: a value outside its range.
    """

    anchor_source: Annotated[str, OneOf(ANCHOR_SOURCES, "the reference is asked at its own top K alone")] = "reference"
    top_p: Annotated[Number, Within("(0, 1]", "such as 0.9")] = 0.9
    pool_size: int = 64
    weights: Annotated[str, OneOf(("mass", "uniform", "geometric", "log_mass", "cross_entropy"))] = "mass"
    force: Annotated[str, OneOf(("both", "push_only", "pull_only"))] = "both"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.anchor_source == "random" and self.pool_size < self.anchor_size:
            raise ConfigError(f"pool_size is {self.pool_size}: give at least anchor_size, {self.anchor_size}")

    @property
    def needs(self) -> Needs:
        """The loss reads T, or the pool from which T is drawn."""
        return super().needs | Needs(anchor_size=self.pool_size if self.anchor_source == "random" else 0)

    @property
    def support_size(self) -> int:
        """K: a pool is not a support."""
        return min(self.anchor_size, self.needs.anchor_size)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(ρ, A)."""
        if self.force == "pull_only":
            triggered = self.triggered(inputs.advantages, inputs.is_correct)
            inputs = replace(inputs, logprobs=torch.where(triggered, inputs.logprobs.detach(), inputs.logprobs))
        return super().__call__(inputs)

    def pushed(self, inputs: LossInputs, triggered: Bool[Tensor, "tokens"]) -> LossOutput:
        """−objective(ρ, A) without a pull: ρ = λ·r on triggered errors."""
        ratio, is_error = importance_ratio(inputs.logprobs, inputs.old_logprobs), triggered & (inputs.advantages < 0)
        rho = torch.where(is_error, self.push_coef * ratio, ratio)
        metrics = {
            "ratio_updated": ratio.detach(),
            "apo/triggered_fraction": triggered.to(rho.dtype),
            "apo/saturated_fraction": applicable((rho < 1 - self.clip_eps).to(rho.dtype), is_error),
        }
        frozen = log_ratio(inputs.logprobs, inputs.old_logprobs).abs() > LOG_RATIO_LIMIT
        return self.surrogate(inputs, rho, frozen, metrics)

    def anchors(self, inputs: LossInputs) -> Anchor:
        """T."""
        anchor = super().anchors(inputs)
        if self.anchor_source == "random":
            return drawn(anchor, inputs.token_ids, self.anchor_size)
        return prefix(anchor, self.top_p) if self.anchor_source == "reference_top_p" else anchor

    def anchor_ratio(
        self, log_r_anchor: Float[Tensor, "tokens"], anchor: Anchor, members: Bool[Tensor, "tokens anchors"]
    ) -> Float[Tensor, "tokens"]:
        """r_anchor; at most e²⁰, 0 where S is empty."""
        ratio = self._weighted_ratio(log_r_anchor, anchor, members)
        return ratio.detach() if self.force == "push_only" else ratio

    def _weighted_ratio(
        self, log_r_anchor: Float[Tensor, "tokens"], anchor: Anchor, members: Bool[Tensor, "tokens anchors"]
    ) -> Float[Tensor, "tokens"]:
        mass = log_r_anchor.clamp(max=LOG_RATIO_LIMIT).exp()
        if self.weights == "mass":
            return mass
        # Inputs are masked, not results: an infinite one would make the backward NaN.
        present = members & (anchor.logprobs > -torch.inf)
        log_ref = torch.where(members, anchor.ref_logprobs.detach(), 0.0)
        log_ratios = torch.where(present, anchor.logprobs, LOG_ZERO) - log_ref
        size = members.sum(1).clamp(min=1)
        if self.weights == "uniform":
            return torch.where(members, log_ratios, LOG_ZERO).clamp(max=LOG_RATIO_LIMIT).exp().sum(1) / size
        if self.weights == "geometric":
            mean = torch.where(members, log_ratios, 0.0).sum(1) / size
            return torch.where(members.any(1), mean, LOG_ZERO).clamp(max=LOG_RATIO_LIMIT).exp()
        slope = log_r_anchor
        if self.weights == "cross_entropy":
            target = torch.where(present, (log_ref - log_mass(log_ref, members).unsqueeze(1)).exp(), 0.0)
            slope = (target * torch.where(present, anchor.logprobs, 0.0)).sum(1)
        moves = log_r_anchor.detach() <= LOG_RATIO_LIMIT
        return mass.detach() + torch.where(moves, slope - slope.detach(), 0.0)

    def pull_slope(self, r_anchor: Float[Tensor, "tokens"]) -> Float[Tensor, "tokens"]:
        """The gradient of `anchor_ratio` by log Σ_S π, with π(·|S) held."""
        if self.force == "push_only":
            return torch.zeros_like(r_anchor)
        return torch.ones_like(r_anchor) if self.weights in ("log_mass", "cross_entropy") else r_anchor

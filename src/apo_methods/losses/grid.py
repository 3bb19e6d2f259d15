"""The mechanism grid: where a loss acts, what holds the policy to the reference there, and at which tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, applicable, required
from apo_lightning.losses.apo import TRIGGERS
from apo_lightning.losses.functional import (
    LOG_RATIO_LIMIT,
    LOG_ZERO,
    Number,
    anchor_log_ratio,
    anchor_set,
    importance_ratio,
    log_mass,
    log_ratio,
)
from apo_lightning.types import Anchor, LossInputs, LossOutput, Needs
from apo_methods.losses.anchor_sets import drawn, partition_kl, prefix

TOPOLOGIES = {  # and the axes that each reads
    "ratio": ("anchor_source", "exclude_sampled", "weights", "force"),
    "none": (),
    "kl": ("scale", "first_tokens"),
    "topk_kl": ("anchor_source", "scale", "tail", "first_tokens"),
    "topk_forward_kl": ("anchor_source", "scale", "tail", "first_tokens"),
    "support_mass": ("anchor_source", "exclude_sampled", "scale", "first_tokens"),
    "support_ratio_aux": ("anchor_source", "exclude_sampled", "weights", "scale", "first_tokens"),
}
ANCHOR_SOURCES = ("reference", "reference_top_p", "random")


@dataclass(frozen=True, kw_only=True)
class GridLoss(APO):
    """APO taken apart: where it acts, what it adds there, and towards which tokens, each chosen on its own.

        loss = −objective(ρ, A) + γ·a·D   on M,   −objective(r, A) elsewhere
        ρ = λ·r where A < 0, r elsewhere;   with topology ratio APO's ρ

        D = Σ_v π·log(π/π_ref)                                             kl
            Σ_T π·log(π/π_ref) + (1 − J)·log((1 − J)/(1 − J_ref))          topk_kl
            Σ_T π_ref·log(π_ref/π) + (1 − J_ref)·log((1 − J_ref)/(1 − J))  topk_forward_kl
            1 − Σ_S π                                                      support_mass
            −r_anchor                                                      support_ratio_aux
            0                                                              none, ratio
        T: the anchors with y;   S: without;   J = Σ_T π,   J_ref = Σ_T π_ref

    M is the trigger: `always` is every token where there is a D, and every A ≠ 0 otherwise. γ is `pull_coef`; at 0 the
    reference is not run. With a = |A| the gradient of `support_ratio_aux` is APO's wherever that is neither saturated
    nor dual-clipped: it is APO's pull outside the clip. The force of `topk_forward_kl` on k ∈ T, π_ref(k) − π(k), does
    not vanish with π(k).

    Source: Wang et al. 2026; `topk_forward_kl`: the loss of Hinton et al. 2015 on T and a bucket for the rest.

    Departure: random anchors are any K tokens only with a pool of all but one, too many for a large vocabulary.

    Metrics: those of `APO`, as far as anchors are read, and `grid/divergence`, D on M.

    Attributes:
        topology: a key of `TOPOLOGIES`, which names the settings that it reads; the others must keep their defaults.
        anchor_source: T. `reference`: its top K. `reference_top_p`: the fewest of these that hold `top_p`. `random`: K
            tokens other than y by a hash, out of the reference's top `pool_size`.
        top_p: in (0, 1]; 1 is `reference`.
        pool_size: at least `anchor_size`.
        weights: r_anchor. `mass`: Σ_S π/Σ_S π_ref. `uniform`: mean_S π/π_ref. `geometric`: exp mean_S log(π/π_ref). Two
            have the value of `mass` and another gradient: `log_mass` that of log r_anchor, as strong where S is small
            as where it is large; `cross_entropy` that of Σ_S Q*·log π, Q* = π_ref(·|S), which does not fade with π(k).
        force: which of r and r_anchor have a gradient on triggered tokens; values and clip are APO's. `push_only`
            keeps APO's gate, which `pull_coef=0` has not.
        scale: a. `unit`: 1. `abs_advantage`: |A|.
        tail: `drop` leaves out the second term of a top-K divergence, which then is none.
        first_tokens: D only at so many tokens of each completion, its entrance, for one more forward of the head; None:
            at all.

    Raises:
        ConfigError: a value outside its range, or a setting that the topology does not read.
    """

    topology: Annotated[str, OneOf(TOPOLOGIES, "the forward KL is not computed over the whole vocabulary")] = "ratio"
    anchor_source: Annotated[str, OneOf(ANCHOR_SOURCES, "the reference is asked at its own top K alone")] = "reference"
    top_p: Annotated[Number, Within("(0, 1]", "such as 0.9")] = 0.9
    pool_size: int = 64
    weights: Annotated[str, OneOf(("mass", "uniform", "geometric", "log_mass", "cross_entropy"))] = "mass"
    force: Annotated[str, OneOf(("both", "push_only", "pull_only"))] = "both"
    scale: Annotated[str, OneOf(("unit", "abs_advantage"))] = "unit"
    tail: Annotated[str, OneOf(("bucket", "drop"))] = "bucket"
    first_tokens: Annotated[int | None, Within("[1, inf)", "or null for all tokens")] = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        # APO bounds β by the clip, which a D is outside of.
        inside: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(APO)}
        if self.topology != "ratio":
            inside["pull_coef"] = 0.0
        APO(**inside)
        if self.anchor_source == "random" and self.pool_size < self.anchor_size:
            raise ConfigError(f"pool_size is {self.pool_size}: give at least anchor_size, {self.anchor_size}")
        unread = {axis for axes in TOPOLOGIES.values() for axis in axes} - set(TOPOLOGIES[self.topology])
        for field in fields(self):
            if field.name in unread and (value := getattr(self, field.name)) != field.default:
                raise ConfigError(f"{field.name} is {value!r}: {self.topology} reads no such setting, leave it out")

    @property
    def saturated_above(self) -> float:
        """APO's κ; ∞ where anchors are not in the ratio."""
        return super().saturated_above if self.topology == "ratio" else float("inf")

    @property
    def needs(self) -> Needs:
        """Anchors or the exact KL on M; nothing of the reference where it does not hold the policy to it."""
        base = replace(super(APO, self).needs, gradient_on=self.surrogate_tokens)
        if self.topology == "none" or self.pull_coef == 0:
            return base
        held = "all" if self.trigger == "always" and self.topology != "ratio" else TRIGGERS[self.trigger]
        pool = Needs(anchor_size=self.pool_size if self.anchor_source == "random" else 0)
        reads = Needs(full_kl=True) if self.topology == "kl" else super().needs | pool
        return base | replace(reads, reference_on=held, gradient_on=held, completions=self.first_tokens is not None)

    @property
    def support_size(self) -> int:
        """K: a pool is not a support."""
        return min(self.anchor_size, self.needs.anchor_size)

    def completion_columns(self, inputs: LossInputs) -> Mapping[str, Float[Tensor, "tokens"]]:
        """`place`: the index of each token in its completion, where D acts at first tokens alone."""
        columns = super().completion_columns(inputs)
        return columns if self.first_tokens is None else {**columns, "place": places(inputs.sequence_ids).double()}

    def triggered(
        self, advantages: Float[Tensor, "tokens"], is_correct: Bool[Tensor, "tokens"]
    ) -> Bool[Tensor, "tokens"]:
        """M."""
        needs = self.needs
        if needs.reference:
            return needs.reference_mask(advantages, is_correct)
        return super().triggered(advantages, is_correct)

    def __call__(self, inputs: LossInputs) -> LossOutput:
        """−objective(ρ, A) + γ·a·D on M."""
        triggered = self.triggered(inputs.advantages, inputs.is_correct)
        if self.topology == "ratio" and self.needs.reference:
            if self.force == "pull_only":
                inputs = replace(inputs, logprobs=torch.where(triggered, inputs.logprobs.detach(), inputs.logprobs))
            return super().__call__(inputs)
        output = self.pushed(inputs, triggered)
        if not self.needs.reference:
            return output
        if self.first_tokens is not None:
            triggered = triggered & (inputs.columns["place"] < self.first_tokens)
        divergence, metrics = self._divergence(inputs, triggered)
        divergence = torch.where(triggered, divergence, 0.0)  # off M the reference's row holds a placeholder
        penalty = self.pull_coef * divergence * (1 if self.scale == "unit" else inputs.advantages.abs())
        if self.topology == "support_ratio_aux" and (corrections := self.corrections(inputs)):
            penalty = corrections["importance_weight"] * penalty  # as APO's pull, a part of its objective
        metrics = {**output.metrics, **metrics, "grid/divergence": applicable(divergence, triggered)}
        return LossOutput(per_token=output.per_token + penalty, metrics=metrics)

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

    def _divergence(
        self, inputs: LossInputs, triggered: Bool[Tensor, "tokens"]
    ) -> tuple[Float[Tensor, "tokens"], dict[str, Float[Tensor, "tokens"]]]:
        """D, and the metrics of the anchors."""
        if self.topology == "kl":
            return required(inputs.full_kl, "full_kl"), {}
        anchor = self.anchors(inputs)
        policy, ref = anchor.logprobs, anchor.ref_logprobs.detach()
        support, members = (
            triggered.unsqueeze(1) & anchor_set(anchor.token_ids, ref, inputs.token_ids, exclude_sampled=excludes)
            for excludes in (False, self.exclude_sampled)
        )
        r_anchor = self.anchor_ratio(anchor_log_ratio(policy, ref, members), anchor, members)
        metrics = {
            "apo/anchor_ratio": applicable(r_anchor, triggered),
            "apo/ref_anchor_mass": applicable(log_mass(ref, members).exp(), triggered),
        }
        if self.topology == "support_ratio_aux":
            return -r_anchor, metrics
        if self.topology == "support_mass":
            return 1 - log_mass(policy, members).exp(), metrics
        p, q = (ref, policy) if self.topology == "topk_forward_kl" else (policy, ref)
        return partition_kl(p, q, support, bucket=self.tail == "bucket"), metrics


def places(sequence_ids: Int[Tensor, "tokens"]) -> Int[Tensor, "tokens"]:
    """Index of each token in its completion.

    Example:
        >>> places(torch.tensor([4, 4, 4, 7, 7]))
        tensor([0, 1, 2, 0, 1])
    """
    lengths = sequence_ids.unique_consecutive(return_counts=True)[1]
    starts = lengths.cumsum(0) - lengths
    return torch.arange(len(sequence_ids), device=sequence_ids.device) - starts.repeat_interleave(lengths)

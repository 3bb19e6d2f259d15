"""The mechanism grid: where a loss acts, what holds the policy to the reference there, and at which tokens."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lab.losses.anchor_sets import partition_kl
from apo_lab.losses.anchored_apo import AnchoredAPO
from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.errors import ConfigError
from apo_lightning.losses import APO, applicable, required
from apo_lightning.losses.apo import TRIGGERS
from apo_lightning.losses.functional import anchor_log_ratio, anchor_set, log_mass
from apo_lightning.types import LossInputs, LossOutput, Needs

TOPOLOGIES = {  # and the axes that each reads
    "ratio": ("anchor_source", "exclude_sampled", "weights", "force"),
    "none": (),
    "kl": ("scale", "first_tokens"),
    "topk_kl": ("anchor_source", "scale", "tail", "first_tokens"),
    "topk_forward_kl": ("anchor_source", "scale", "tail", "first_tokens"),
    "support_mass": ("anchor_source", "exclude_sampled", "scale", "first_tokens"),
    "support_ratio_aux": ("anchor_source", "exclude_sampled", "weights", "scale", "first_tokens"),
}


@dataclass(frozen=True, kw_only=True)
class GridLoss(AnchoredAPO):
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
        scale: a. `unit`: 1. `abs_advantage`: |A|.
        tail: `drop` leaves out the second term of a top-K divergence, which then is none.
        first_tokens: D only at so many tokens of each completion, its entrance, for one more forward of the head; None:
            at all.

    Raises:
        ConfigError: a value outside its range, or a setting that the topology does not read.
    """

    topology: Annotated[str, OneOf(TOPOLOGIES, "the forward KL is not computed over the whole vocabulary")] = "ratio"
    scale: Annotated[str, OneOf(("unit", "abs_advantage"))] = "unit"
    tail: Annotated[str, OneOf(("bucket", "drop"))] = "bucket"
    first_tokens: Annotated[int | None, Within("[1, inf)", "or null for all tokens")] = None

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        # APO bounds β by the clip, which a D is outside of.
        inside: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(AnchoredAPO)}
        if self.topology != "ratio":
            inside["pull_coef"] = 0.0
        AnchoredAPO(**inside)
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
        reads = Needs(full_kl=True) if self.topology == "kl" else super().needs
        return base | replace(reads, reference_on=held, gradient_on=held, completions=self.first_tokens is not None)

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
        if self.topology == "ratio" and self.needs.reference:
            return super().__call__(inputs)
        triggered = self.triggered(inputs.advantages, inputs.is_correct)
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

"""The terms' gradients in the spaces of `GradientGeometry`: logits, the head, all parameters."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.losses.terms import TermSlopes, term_names, term_slopes
from apo_lab.statistics.gradient_geometry import (
    count_sketch,
    geometry,
    logit_products,
    merged_slopes,
    picks_of,
    split_half,
)
from apo_lightning.common.hashing import hash64
from apo_lightning.distributed.gathering import from_all_ranks, items_of_all_ranks
from apo_lightning.logprobs import token_statistics
from apo_lightning.logprobs.divergence import full_kl
from apo_lightning.losses import PolicyLoss, masks_of
from apo_lightning.losses.aggregation import token_weights
from apo_lightning.losses.functional import anchor_set
from apo_lightning.model.packing import Microbatch
from apo_lightning.module import RLVRModule
from apo_lightning.types import StepOutput, TokenStatistics
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable

SPACES = ("logits", "head", "params")
OBJECTIVES = ("anchors", "support")
"""Σ w·Π_S and Σ w·Π_{T_K} over tokens with A < 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step, and the loss and settings that decide its terms."""

    step: StepOutput
    loss: PolicyLoss
    settings: StepSettings
    anchor_size: int
    """K of the anchors."""
    exclude_sampled: bool

    @property
    def table(self) -> StepTable:
        """The step's table, as in the update."""
        tokens = self.step.tokens
        table = StepTable(self.step.rollouts, self.step.advantages, tokens.token_ids.device)
        table.ref_logprobs, table.anchor = tokens.ref_logprobs, tokens.anchor
        return table

    def slopes(self, table: StepTable, part: Microbatch, statistics: TokenStatistics) -> dict[str, TermSlopes]:
        """Slopes of the loss's terms and of the negated objectives at a policy, with r = 1.

        Args:
            table: of the step.
            part: the tokens.
            statistics: of the policy, with the log-probs of all K anchors.
        """
        wanted = masks_of(self.loss, table.advantages, table.is_correct).reference
        assert statistics.anchor_logprobs is not None
        assert table.anchor is not None
        here = wanted[part.token_index]
        asked = replace(statistics, anchor_logprobs=statistics.anchor_logprobs.masked_fill(~here[:, None], -torch.inf))
        inputs = table.loss_inputs(
            part, asked, old_logprobs=None, needs=self.loss.needs, reference_mask=wanted, importance_cap=None
        )
        nothing = torch.zeros_like(statistics.anchor_logprobs)
        terms = {
            name: slope if slope.anchors.shape[1] else replace(slope, anchors=nothing)
            for name, slope in term_slopes(self.loss, inputs).items()
        }
        ids = table.anchor.token_ids[part.token_index, : self.anchor_size]
        ref = table.anchor.ref_logprobs[part.token_index, : self.anchor_size]
        none = torch.zeros_like(statistics.logprobs)
        is_error = (table.advantages < 0)[part.token_index, None]
        for name, exclude in zip(OBJECTIVES, (self.exclude_sampled, False), strict=True):
            members = anchor_set(ids, ref, part.targets, exclude_sampled=exclude) & is_error
            mass = torch.where(members, statistics.anchor_logprobs.detach().exp(), 0.0)
            terms[name] = TermSlopes(logprobs=none, anchors=-mass, entropy=none, full_kl=none)
        return terms

    def weights(self, completions: Sequence[int], table: StepTable, *, over_ranks: bool) -> Float[Tensor, "tokens"]:
        """Token weights of one mini-batch of these completions; those not kept have weight 0."""
        keep = torch.zeros_like(table.keep)
        keep[list(completions)] = table.keep[list(completions)]
        counts = (int(table.lengths[keep].sum()), int(keep.sum()))
        parts = from_all_ranks(counts) if over_ranks else [counts]
        num_tokens, num_sequences = (sum(column) for column in zip(*parts, strict=True))
        return token_weights(
            table.lengths,
            keep,
            self.settings.aggregation,
            max_completion_tokens=self.settings.max_completion_tokens,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
        ).to(table.device)


def logit_geometry(measured: Measured, buckets: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Geometry of the forces on logits at the sampling policy. Collective.

    Args:
        measured: of this rank.
        buckets: of π_ref(y); the median of ‖pull‖/‖push‖ is given for each.
    """
    table, tokens = measured.table, measured.step.tokens
    # The forces of entropy and of the exact KL depend on the whole distribution, which is not known here.
    unknown = {"entropy", "kl"} if measured.loss.needs.full_kl else {"entropy"}
    names = [name for name in term_names(measured.loss) if name not in unknown]
    everything = range(len(measured.step.rollouts.completions))
    weights = measured.weights(everything, table, over_ranks=True)
    assert tokens.anchor is not None
    products = torch.zeros(len(names) + 2, len(names) + 2, dtype=torch.float64)
    ratios, num_left_out, gap_sum, num_tokens = [], 0, 0.0, 0
    for part in table.microbatches(everything, measured.settings.tokens_per_microbatch):
        index = part.token_index
        logprobs = tokens.old_logprobs[index].double()
        anchors = tokens.anchor.logprobs[index, : measured.anchor_size].double()
        known = TokenStatistics(
            logprobs=logprobs, entropy=tokens.entropy[index].double(), max_prob=logprobs, anchor_logprobs=anchors
        )
        full = replace(known, full_kl=torch.zeros_like(logprobs)) if measured.loss.needs.full_kl else known
        slopes = measured.slopes(table, part, full)
        ids = tokens.anchor.token_ids[index, : measured.anchor_size]
        probs, is_sampled = picks_of(part.targets, ids, logprobs, anchors)
        stacked = torch.stack(
            [merged_slopes(slopes[n].logprobs, slopes[n].anchors, is_sampled) for n in (*names, *OBJECTIVES)]
        )
        by_token, gap = logit_products(stacked * weights[index].double()[:, None], probs)
        finite = by_token.isfinite().all(0).all(0)
        num_left_out += int((~finite).sum())
        gap_sum, num_tokens = gap_sum + float(gap[finite].sum()), num_tokens + int(finite.sum())
        products += by_token[:, :, finite].sum(2).cpu()
        if "pull" in names:
            push, pull = (by_token[i, i, finite].clamp(min=0).sqrt() for i in map(names.index, ("push", "pull")))
            assert tokens.ref_logprobs is not None
            ref = tokens.ref_logprobs[index][finite].exp()
            moved = push > 0
            ratios += zip(ref[moved].tolist(), (pull[moved] / push[moved]).tolist(), strict=True)
    parts = from_all_ranks((products, num_left_out, gap_sum, num_tokens))
    totals: list[Any] = [sum(column) for column in zip(*parts, strict=True)]
    products, num_left_out, gap_sum, num_tokens = totals
    # A force on raw logits has a factor of 1/τ.
    found = geometry(products / measured.settings.temperature**2, names, OBJECTIVES)
    metrics = {f"logits/{name}": value for name, value in found.items()}
    metrics["logits/square_gap"] = gap_sum / num_tokens if num_tokens else math.nan
    metrics["logits/num_nonfinite"] = float(num_left_out)
    return metrics | (_pull_over_push(items_of_all_ranks(ratios), buckets) if "pull" in names else {})


def _pull_over_push(ratios: Sequence[tuple[float, float]], buckets: Sequence[tuple[float, float]]) -> dict[str, float]:
    found = {}
    for low, high in buckets:
        inside = [ratio for prob, ratio in ratios if low <= prob < high or (high == 1 and prob >= 1)]
        median = float(torch.tensor(inside).median()) if inside else math.nan
        found[f"pull_over_push_{low:g}_to_{high:g}"] = median
    return found


def parameter_geometry(
    measured: Measured, space: str, module: RLVRModule, *, num_prompts: int, sketch_size: int
) -> dict[str, float]:
    """Geometry of the gradients of the head or of all parameters at the current policy; `.grad` is not touched.

    Args:
        measured: of the only process.
        space: `head` or `params`.
        module: with the policy.
        num_prompts: at most so many, sampled by hash; they go to the halves in turn.
        sketch_size: of `params`.
    """
    table, step = measured.table, measured.step
    size = step.rollouts.group_size
    ids = [prompt.id for prompt in step.rollouts.prompts]
    order = sorted(range(len(ids)), key=lambda i: hash64(f"{module.seed}\x1fgeometry\x1f{step.step}\x1f{ids[i]}"))
    halves = [
        [b for place in order[:num_prompts][half::2] for b in range(place * size, (place + 1) * size)]
        for half in range(2)
    ]
    weights = measured.weights([*halves[0], *halves[1]], table, over_ranks=False)
    names = term_names(measured.loss)
    vectors = [
        {
            name: _gradient(measured, module, table, weights, half, name, space, sketch_size)
            for name in (*names, *OBJECTIVES)
        }
        for half in halves
    ]
    first, second = (torch.stack(list(half.values())) for half in vectors)
    both = first + second
    found = geometry(both @ both.T, names, OBJECTIVES) | split_half(first[: len(names)], second[: len(names)], names)
    return {f"{space}/{name}": value for name, value in found.items()}


def _gradient(
    measured: Measured,
    module: RLVRModule,
    table: StepTable,
    weights: Float[Tensor, "tokens"],
    completions: Sequence[int],
    name: str,
    space: str,
    sketch_size: int,
) -> Float[Tensor, "entries"]:
    """−∇ Σ w·ℓ of one term over some completions."""
    weight = module.policy.head_weight
    leaves = [weight] if space == "head" else [p for p in module.policy.parameters() if p.requires_grad]
    sums = [torch.zeros_like(leaf, dtype=torch.float64, device="cpu") for leaf in leaves]
    is_sketch = space == "params"
    for part, statistics, own in _statistics(measured, module, table, completions, leaves, space):
        slope = measured.slopes(table, part, _detached(statistics))[name]
        with torch.enable_grad():
            scalar = -(weights[part.token_index] * slope.linear(statistics)).sum()
        for total, found in zip(sums, torch.autograd.grad(scalar, own, allow_unused=True), strict=True):
            if found is not None:
                total += found.double().cpu()
    return count_sketch(sums, sketch_size, module.seed) if is_sketch else sums[0].flatten()


def _statistics(
    measured: Measured,
    module: RLVRModule,
    table: StepTable,
    completions: Sequence[int],
    leaves: Sequence[Tensor],
    space: str,
) -> Iterator[tuple[Microbatch, TokenStatistics, Sequence[Tensor]]]:
    """Micro-batches with the policy's statistics and the leaves that these have a gradient to."""
    policy, reference, temperature = module.policy, module.reference, module.settings.temperature
    for part in table.microbatches(completions, module.memory.tokens_per_microbatch):
        anchor_ids = table.anchor_ids(part, measured.anchor_size)
        with torch.enable_grad(), policy.autocast():
            if space == "head":
                with torch.no_grad():
                    hidden = policy.hidden_states(part)
                head = leaves[0].detach().clone().requires_grad_()
                own: Sequence[Tensor] = [head]
            else:
                hidden, head, own = policy.hidden_states(part), policy.head_weight, leaves
            said = token_statistics(hidden, head, part.targets, anchor_ids, temperature=temperature)
            if measured.loss.needs.full_kl:
                assert reference is not None
                asked = (hidden, head, reference.hidden_states(part), reference.head_weight)
                said = replace(said, full_kl=full_kl(*asked, temperature=temperature))
        # Outside the `with`: the caller's code would run under autocast too.
        yield part, said, own


def _detached(statistics: TokenStatistics) -> TokenStatistics:
    given: dict[str, Tensor | None] = {name: getattr(statistics, name) for name in TokenStatistics.__slots__}
    return replace(statistics, **{name: value.detach() for name, value in given.items() if value is not None})

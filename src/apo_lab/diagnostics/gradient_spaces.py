"""The terms' gradients in the spaces of `GradientGeometry`: logits, the head, all parameters."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lab.diagnostics.sampling import share_over_ranks
from apo_lab.diagnostics.settings import present
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
from apo_lightning.step.settings import StepSettings
from apo_lightning.step.table import StepTable
from apo_lightning.types import StepOutput, TokenStatistics

REF_PROB_BUCKETS = ((0.0, 0.01), (0.01, 0.1), (0.1, 0.5), (0.5, 0.9), (0.9, 1.0))
SPACES = ("logits", "head", "params")
OBJECTIVES = ("anchors", "support")
"""Σ w·Π_S and Σ w·Π_{T_K} over tokens with A < 0."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step, and the loss and settings that decide its terms."""

    step: StepOutput
    loss: PolicyLoss
    settings: StepSettings
    anchor_size: int
    """K of the anchors."""
    exclude_sampled: bool

    @cached_property
    def table(self) -> StepTable:
        """The step's table, as in the update."""
        tokens = self.step.tokens
        table = StepTable(self.step.rollouts, self.step.advantages, tokens.token_ids.device)
        table.ref_logprobs, table.anchor = tokens.ref_logprobs, tokens.anchor
        return table

    def slopes(self, part: Microbatch, statistics: TokenStatistics) -> dict[str, TermSlopes]:
        """Slopes of the loss's terms and of the negated objectives, with r = 1, at a policy.

        Args:
            part: the tokens.
            statistics: of the policy, with the log-probs of all K anchors.
        """
        table, here = self.table, part.token_index
        wanted = masks_of(self.loss, table.advantages, table.is_correct).reference
        logprobs = present(statistics.anchor_logprobs).detach()
        asked = replace(statistics, anchor_logprobs=logprobs.masked_fill(~wanted[here, None], -torch.inf))
        inputs = table.loss_inputs(part, asked, old_logprobs=None, needs=self.loss.needs, reference_mask=wanted)
        terms = {
            name: slope if slope.anchors.shape[1] else replace(slope, anchors=torch.zeros_like(logprobs))
            for name, slope in term_slopes(self.loss, inputs).items()
        }
        ids, ref = (
            values[here, : self.anchor_size]
            for values in (present(table.anchor).token_ids, present(table.anchor).ref_logprobs)
        )
        none, is_error = torch.zeros_like(logprobs[:, 0]), (table.advantages < 0)[here, None]
        for name, exclude in zip(OBJECTIVES, (self.exclude_sampled, False), strict=True):
            members = anchor_set(ids, ref, part.targets, exclude_sampled=exclude) & is_error
            mass = torch.where(members, logprobs.exp(), 0.0)
            terms[name] = TermSlopes(logprobs=none, anchors=-mass, entropy=none, full_kl=none)
        return terms

    def weights(self, completions: Sequence[int]) -> Float[Tensor, "tokens"]:
        """Token weights of one mini-batch of these completions of all ranks; those not kept have weight 0."""
        table = self.table
        keep = torch.zeros_like(table.keep)
        keep[list(completions)] = table.keep[list(completions)]
        counts = from_all_ranks((int(table.lengths[keep].sum()), int(keep.sum())))
        num_tokens, num_sequences = (sum(column) for column in zip(*counts, strict=True))
        return token_weights(
            table.lengths,
            keep,
            self.settings.aggregation,
            max_completion_tokens=self.settings.max_completion_tokens,
            num_tokens=num_tokens,
            num_sequences=num_sequences,
        ).to(table.device)


def logit_geometry(measured: Measured) -> dict[str, float]:
    """Geometry of the forces on logits at the sampling policy. Collective."""
    tokens, full_kl = measured.step.tokens, measured.loss.needs.full_kl
    anchor = present(tokens.anchor)
    # The forces of entropy and of the exact KL depend on the whole distribution, which is not known here.
    unknown = {"entropy", "kl"} if full_kl else {"entropy"}
    names = [name for name in term_names(measured.loss) if name not in unknown]
    everything = range(len(measured.step.rollouts.completions))
    weights = measured.weights(everything)
    products = torch.zeros(len(names) + 2, len(names) + 2, dtype=torch.float64)
    ratios, num_left_out, gap_sum, num_tokens = [], 0, 0.0, 0
    for part in measured.table.microbatches(everything, measured.settings.tokens_per_microbatch):
        index = part.token_index
        logprobs = tokens.old_logprobs[index].double()
        anchors = anchor.logprobs[index, : measured.anchor_size].double()
        known = TokenStatistics(
            logprobs=logprobs,
            entropy=tokens.entropy[index].double(),
            max_prob=logprobs,
            anchor_logprobs=anchors,
            full_kl=torch.zeros_like(logprobs) if full_kl else None,
        )
        slopes = measured.slopes(part, known)
        probs, is_sampled = picks_of(part.targets, anchor.token_ids[index, : measured.anchor_size], logprobs, anchors)
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
            ref, moved = present(tokens.ref_logprobs)[index][finite].exp(), push > 0
            ratios += zip(ref[moved].tolist(), (pull[moved] / push[moved]).tolist(), strict=True)
    parts = from_all_ranks((products, num_left_out))
    products = torch.stack([part for part, _ in parts]).sum(0)
    # A force on raw logits has a factor of 1/τ.
    found = geometry(products / measured.settings.temperature**2, names, OBJECTIVES)
    metrics = {f"logits/{name}": value for name, value in found.items()}
    metrics["logits/square_gap"] = share_over_ranks(gap_sum, num_tokens)
    metrics["logits/num_nonfinite"] = float(sum(number for _, number in parts))
    return metrics | (_pull_over_push(items_of_all_ranks(ratios)) if "pull" in names else {})


def _pull_over_push(ratios: Sequence[tuple[float, float]]) -> dict[str, float]:
    """The median of ‖pull‖/‖push‖ by bucket of π_ref(y)."""
    found = {}
    for low, high in REF_PROB_BUCKETS:
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
    step = measured.step
    size = step.rollouts.group_size
    ids = [prompt.id for prompt in step.rollouts.prompts]
    order = sorted(range(len(ids)), key=lambda i: hash64(f"{module.seed}\x1fgeometry\x1f{step.step}\x1f{ids[i]}"))
    halves = [
        [b for place in order[:num_prompts][half::2] for b in range(place * size, (place + 1) * size)]
        for half in range(2)
    ]
    weights = measured.weights([*halves[0], *halves[1]])
    names = term_names(measured.loss)
    first, second = (
        torch.stack(
            [_gradient(measured, module, weights, half, name, space, sketch_size) for name in (*names, *OBJECTIVES)]
        )
        for half in halves
    )
    both = first + second
    found = geometry(both @ both.T, names, OBJECTIVES) | split_half(first[: len(names)], second[: len(names)], names)
    return {f"{space}/{name}": value for name, value in found.items()}


def _gradient(
    measured: Measured,
    module: RLVRModule,
    weights: Float[Tensor, "tokens"],
    completions: Sequence[int],
    name: str,
    space: str,
    sketch_size: int,
) -> Float[Tensor, "entries"]:
    """−∇ Σ w·ℓ of one term over some completions."""
    policy = module.policy
    leaves = [policy.head_weight] if space == "head" else [p for p in policy.parameters() if p.requires_grad]
    sums = [torch.zeros_like(leaf, dtype=torch.float64, device="cpu") for leaf in leaves]
    for part, statistics, own in _statistics(measured, module, completions, leaves, space):
        slope = measured.slopes(part, statistics)[name]
        with torch.enable_grad():
            scalar = -(weights[part.token_index] * slope.linear(statistics)).sum()
        for total, found in zip(sums, torch.autograd.grad(scalar, own, allow_unused=True), strict=True):
            if found is not None:
                total += found.double().cpu()
    return sums[0].flatten() if space == "head" else count_sketch(sums, sketch_size, module.seed)


def _statistics(
    measured: Measured, module: RLVRModule, completions: Sequence[int], leaves: Sequence[Tensor], space: str
) -> Iterator[tuple[Microbatch, TokenStatistics, Sequence[Tensor]]]:
    """Micro-batches with the policy's statistics and the leaves that these have a gradient to."""
    policy, table, temperature = module.policy, measured.table, module.settings.temperature
    for part in table.microbatches(completions, module.settings.tokens_per_microbatch):
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
                reference = present(module.reference)
                asked = (hidden, head, reference.hidden_states(part), reference.head_weight)
                said = replace(said, full_kl=full_kl(*asked, temperature=temperature))
        # Outside the `with`: the caller's code would run under autocast too.
        yield part, said, own

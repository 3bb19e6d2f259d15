"""The passes without a gradient: what reference and sampling policy say of the tokens that someone will read."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.losses import PolicyLoss
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.types import Advantages, Needs, Rollouts
from apo_lightning.update.minibatches import Minibatch, Ranks, even_microbatches
from apo_lightning.update.retry import within_budget
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.subset import draw_subset
from apo_lightning.update.table import StepTable


def score_reference(
    table: StepTable,
    reference: Reference | None,
    loss: PolicyLoss,
    updated: Bool[Tensor, "tokens"],
    watched: Needs,
    settings: StepSettings,
    ranks: Ranks,
) -> Bool[Tensor, "tokens"]:
    """Run the reference on the tokens that need it.

    Args:
        table: of the step; filled in.
        reference: None where nothing needs it.
        loss: says which tokens it can use the reference on.
        updated: tokens of the completions that the update runs; of the others the loss is not asked.
        watched: what this step's diagnostics read.
        settings: sizes of a step.
        ranks: all of them run equally many micro-batches.

    Returns:
        The tokens whose reference rows the loss may use.
    """
    loss_mask = loss.reference_mask(table.advantages, table.is_correct) & updated
    needs = loss.needs | watched
    if not needs.reference_statistics:
        return loss_mask
    assert reference is not None
    passes = []
    if watched.reference_statistics:
        passes.append((torch.ones_like(loss_mask), watched.anchor_size))
    # Again where a diagnostic has just looked: what the loss reads must be the same to the last bit, and that depends
    # on which completions are run together.
    if loss.needs.reference_statistics:
        passes.append((loss_mask, loss.needs.anchor_size))
    table.prepare_reference(needs.anchor_size)
    for wanted, anchor_size in passes:
        microbatches, _ = even_microbatches(table, table.completions_with(wanted), settings, ranks)
        for microbatch in microbatches:
            part = microbatch.only(wanted[microbatch.token_index])
            table.record_reference(part, reference.score(part, anchor_size, temperature=settings.temperature))
    return loss_mask


def watched_by(callbacks: Iterable[Any], step: int) -> Needs:
    """What the diagnostics that are due at this step read beyond the loss."""
    needs = Needs()
    for callback in callbacks:
        if hasattr(callback, "needs") and callback.is_due(step):
            needs |= callback.needs
    return needs


def unscored_parts(
    table: StepTable, plan: Sequence[Minibatch], watched: Needs, settings: StepSettings, ranks: Ranks, seed: int
) -> list[Microbatch]:
    """What the sampling policy must be run on before the update, because it will have moved or someone asks for more.

    The update's first mini-batch is run by the sampling policy itself: there π_old is the policy's own log-prob,
    detached, and costs no forward. A diagnostic reads all tokens, those too that the update does not run; without one,
    some of these are drawn by lot.

    Args:
        table: of the step; `required` and `drawn` are filled in.
        plan: of the update.
        watched: what this step's diagnostics read.
        settings: sizes of a step.
        ranks: all of them run equally many micro-batches.
        seed: the run's, of the draw.
    """
    if watched == Needs():
        later = plan[1:] if settings.old_logprobs == "trainer" else []
        table.required = _completions_run(table, [*plan[:1], *later])
        table.drawn = draw_subset(table, settings.scored_fraction, seed)
        # First, since padding may run a completion again that the update will run with others.
        drawn, _ = even_microbatches(table, table.drawn.nonzero().flatten().tolist(), settings, ranks)
        return drawn + [microbatch for minibatch in later for microbatch in minibatch.microbatches]
    table.required = torch.ones_like(table.required)
    microbatches: list[Microbatch] = []
    for minibatch in plan:
        is_run = _completions_run(table, [minibatch])
        rest = [b for b in minibatch.completions if not is_run[b]]
        # As the update splits them: π_old must be the same to the last bit whether or not a diagnostic looks.
        microbatches += [*even_microbatches(table, rest, settings, ranks)[0], *minibatch.microbatches]
    return microbatches


def _completions_run(table: StepTable, plan: Sequence[Minibatch]) -> Bool[Tensor, "sequences"]:
    is_run = torch.zeros_like(table.required)
    for part in (part for minibatch in plan for part in minibatch.real_microbatches):
        is_run[table.sequence_ids[part.token_index].cpu()] = True
    return is_run


@torch.no_grad()
def score_policy(
    table: StepTable, policy: Policy, microbatches: Sequence[Microbatch], watched: Needs, settings: StepSettings
) -> None:
    """Fill in what the sampling policy says of these micro-batches, and of the anchors that a diagnostic reads."""
    for microbatch in within_budget(table, microbatches, settings.tokens_per_microbatch):
        anchor_ids = table.anchor_ids(microbatch, watched.anchor_size)
        table.record_policy(microbatch, policy(microbatch, anchor_ids, temperature=settings.temperature))


@torch.no_grad()
def score_for_check(table: StepTable, policy: Policy, settings: StepSettings, ranks: Ranks) -> None:
    """See to it that every rank knows a log-prob of the sampling policy, to hold its engine's against.

    A rank that knows none runs one micro-batch, and the others with it: under sharding a forward is a collective.
    """
    knows_none = bool(table.old_logprobs.isnan().all())
    if not ranks.max(knows_none):
        return
    everything = range(len(table.rollouts.completions))
    microbatch = table.microbatches(everything, settings.tokens_per_microbatch)[0]
    statistics = policy(microbatch, temperature=settings.temperature)
    if knows_none:
        table.record_policy(microbatch, statistics)


def table_to_check(rollouts: Rollouts, device: torch.device) -> StepTable:
    """Of completions that nothing is learnt from: for the check of a version that no training step has used."""
    nothing = torch.zeros(len(rollouts.prompts), rollouts.group_size)
    return StepTable(rollouts, Advantages(values=nothing, keep=nothing.bool()), device)

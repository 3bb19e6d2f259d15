"""What one step will run: which completions, in which micro-batches, for the update and before it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.packing import Microbatch
from apo_lightning.types import Needs
from apo_lightning.update.minibatch_plan import Minibatch, equalize_microbatches, plan_minibatches, updated_tokens
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.subset import draw_subset
from apo_lightning.update.table import StepTable


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Which completions a step runs, and in what order; made once the advantages are known."""

    table: StepTable
    minibatches: Sequence[Minibatch]
    updated: Bool[Tensor, "tokens"]
    """Tokens of the completions that the update runs; the loss is not asked about the others."""
    diagnostic_needs: Needs
    """What this step's diagnostics read beyond the loss."""
    unscored: Sequence[Microbatch]
    """What the sampling policy is run on before the update."""


def plan_step(
    table: StepTable, loss: PolicyLoss, diagnostic_needs: Needs, settings: StepSettings, ranks: Ranks, seed: int
) -> StepPlan:
    """Plan a step; collective.

    Args:
        table: of the step; `required` and `drawn` are filled in.
        loss: says which tokens can have a gradient.
        diagnostic_needs: what this step's diagnostics read.
        settings: sizes of a step.
        ranks: all of them run equally many micro-batches.
        seed: the run's, of the completions that are drawn by lot.
    """
    updated = updated_tokens(table, loss)
    minibatches = plan_minibatches(table, updated, settings, ranks)
    return StepPlan(
        table=table,
        minibatches=minibatches,
        updated=updated,
        diagnostic_needs=diagnostic_needs,
        unscored=_unscored(table, minibatches, diagnostic_needs, settings, ranks, seed),
    )


def needs_of_diagnostics(callbacks: Iterable[Any], step: int) -> Needs:
    """What the diagnostics that are due at this step read beyond the loss."""
    needs = Needs()
    for callback in callbacks:
        if hasattr(callback, "needs") and callback.is_due(step):
            needs |= callback.needs
    return needs


def _unscored(
    table: StepTable,
    minibatches: Sequence[Minibatch],
    diagnostic_needs: Needs,
    settings: StepSettings,
    ranks: Ranks,
    seed: int,
) -> list[Microbatch]:
    """What the sampling policy must be run on before the update, because it will have moved or someone asks for more.

    The update's first mini-batch is run by the sampling policy itself: there π_old is the policy's own log-prob,
    detached, and costs no forward. A diagnostic reads all tokens, those too that the update does not run; without one,
    some of these are drawn by lot.
    """
    if diagnostic_needs == Needs():
        later = minibatches[1:] if settings.old_logprobs == "trainer" else []
        table.required = _completions_run(table, [*minibatches[:1], *later])
        completions = table.assignment.completions
        is_required = completions.send_back(table.required)
        table.drawn = completions.send(draw_subset(table.rollouts, is_required, settings.scored_fraction, seed))
        drawn, _ = equalize_microbatches(table, table.drawn.nonzero().flatten().tolist(), settings, ranks)
        return drawn + [microbatch for minibatch in later for microbatch in minibatch.microbatches]
    table.required = torch.ones_like(table.required)
    microbatches: list[Microbatch] = []
    for minibatch in minibatches:
        is_run = _completions_run(table, [minibatch])
        rest = [b for b in minibatch.completions if not is_run[b]]
        # As the update splits them: π_old must be the same to the last bit whether or not a diagnostic looks.
        microbatches += [*equalize_microbatches(table, rest, settings, ranks)[0], *minibatch.microbatches]
    return microbatches


def _completions_run(table: StepTable, minibatches: Sequence[Minibatch]) -> Bool[Tensor, "sequences"]:
    is_run = torch.zeros_like(table.required)
    for part in (part for minibatch in minibatches for part in minibatch.active_microbatches):
        is_run[table.sequence_ids[part.token_index].cpu()] = True
    return is_run

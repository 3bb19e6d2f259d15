"""What one step will run: which completions, in which micro-batches, for the update and before it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.model.packing import Microbatch
from apo_lightning.step.assignment import assign
from apo_lightning.step.minibatch_plan import Minibatch, StepPlan, plan_minibatches, updated_tokens
from apo_lightning.step.part import Setup
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages, Needs, Rollouts


def step_table(setup: Setup, rollouts: Rollouts, advantages: Advantages) -> StepTable:
    """The table of a step from the rollouts that this rank sampled, and their advantages; collective."""
    assignment = assign(
        rollouts, advantages, setup.needs, setup.settings.minibatches_per_step, setup.ranks, setup.device
    )
    return StepTable(rollouts, advantages, setup.device, assignment)


def plan_step(setup: Setup, table: StepTable, diagnostic_needs: Needs) -> StepPlan:
    """Plan a step, once the advantages of its tokens are known; collective."""
    updated = updated_tokens(table, setup.needs)
    minibatches = plan_minibatches(table, updated, setup.settings, setup.ranks)
    return StepPlan(
        table=table,
        minibatches=minibatches,
        reference_mask=setup.loss.needs.reference_mask(table.advantages, table.is_correct) & updated,
        diagnostic_needs=diagnostic_needs,
        unscored=_unscored(setup, table, minibatches, everything=diagnostic_needs != Needs()),
    )


def needs_of_diagnostics(callbacks: Iterable[Any], step: int) -> Needs:
    """What the diagnostics that are due at this step read of all tokens beyond the loss."""
    needs = Needs()
    for callback in callbacks:
        if hasattr(callback, "needs") and callback.is_due(step):
            needs |= replace(callback.needs, reference_model=False)
    return needs


def _unscored(
    setup: Setup, table: StepTable, minibatches: Sequence[Minibatch], *, everything: bool
) -> list[Microbatch]:
    """What the sampling policy must be run on before the update.

    The first mini-batch of the update is run by the sampling policy itself: there π_old is the policy's own log-prob,
    detached, and costs no forward. A diagnostic reads `everything`, also what the update does not run.
    """
    if not everything:
        later = minibatches[1:] if setup.settings.old_logprobs == "trainer" else []
        return [microbatch for minibatch in later for microbatch in minibatch.microbatches]
    microbatches = []
    for minibatch in minibatches:
        is_run = _completions_run(table, minibatch)
        # As the update splits them: π_old must be the same to the last bit with and without a diagnostic.
        skipped = [b for b in minibatch.completions if not is_run[b]]
        microbatches += [*setup.microbatches(table.sequences, skipped), *minibatch.microbatches]
    return microbatches


def _completions_run(table: StepTable, minibatch: Minibatch) -> Bool[Tensor, "sequences"]:
    is_run = torch.zeros_like(table.keep)
    for part in minibatch.active_microbatches:
        is_run[table.sequence_ids[part.token_index].cpu()] = True
    return is_run

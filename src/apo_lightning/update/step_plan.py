"""What one step will run: which completions, in which micro-batches, for the update and before it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.losses.minibatch_tokens import MinibatchTokens
from apo_lightning.losses.policy_loss import masks_of
from apo_lightning.model.packing import Microbatch
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import Advantages, Needs, Rollouts
from apo_lightning.update.assignment import assign
from apo_lightning.update.minibatch_plan import Minibatch, equalize_microbatches, plan_minibatches, updated_tokens
from apo_lightning.update.run import Run
from apo_lightning.update.subset import draw_subset
from apo_lightning.update.table import StepTable

ODD = 0x5851F42D4C957F2D
"""A 63-bit odd number: multiplied by a position it moves all bits of a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Which completions a step runs, and in what order; made once the advantages are known."""

    table: StepTable
    minibatches: Sequence[Minibatch]
    reference_mask: Bool[Tensor, "tokens"]
    """Tokens whose reference rows the loss may use; only those of completions that the update runs."""
    diagnostic_needs: Needs
    """What this step's diagnostics read beyond the loss."""
    unscored: Sequence[Microbatch]
    """What the sampling policy is run on before the update."""
    marks: Float[Tensor, "tokens"] | None
    """What the loss's `marks` says of each token, 0 on dropped ones; None: the loss needs none."""


def step_table(run: Run, rollouts: Rollouts, advantages: Advantages) -> StepTable:
    """The table of a step from the rollouts that this rank sampled, and their advantages; collective."""
    has_critic = run.critic is not None
    assignment = assign(rollouts, advantages, run.loss, run.settings, run.ranks, run.device, has_critic=has_critic)
    return StepTable(rollouts, advantages, run.device, assignment)


def plan_step(run: Run, table: StepTable) -> StepPlan:
    """Plan a step, once the advantages of its tokens are known; collective."""
    needs = needs_of_diagnostics(run.trainer.callbacks, table.rollouts.step)  # pyright: ignore[reportAttributeAccessIssue]
    updated = updated_tokens(table, run.loss)
    minibatches = plan_minibatches(table, updated, run.settings, run.ranks)
    return StepPlan(
        table=table,
        minibatches=minibatches,
        reference_mask=masks_of(run.loss, table.advantages, table.is_correct).reference & updated,
        diagnostic_needs=needs,
        unscored=_unscored(run, table, minibatches, needs),
        marks=token_marks(run, table, minibatches) if run.loss.needs.marks else None,
    )


def needs_of_diagnostics(callbacks: Iterable[Any], step: int) -> Needs:
    """What the diagnostics that are due at this step read beyond the loss."""
    needs = Needs()
    for callback in callbacks:
        if hasattr(callback, "needs") and callback.is_due(step):
            needs |= callback.needs
    return needs


def _unscored(run: Run, table: StepTable, minibatches: Sequence[Minibatch], needs: Needs) -> list[Microbatch]:
    """What the sampling policy must be run on before the update; `required` and `drawn` of the table are filled in.

    The first mini-batch of the update is run by the sampling policy itself: there π_old is the policy's own log-prob,
    detached, and costs no forward. A diagnostic reads all tokens, also those that the update does not run; without a
    diagnostic, a random few of these are scored.
    """

    def equal(completions: Sequence[int]) -> list[Microbatch]:
        budget = run.settings.tokens_per_microbatch
        return equalize_microbatches(table.sequences, completions, budget, run.ranks, table.device)[0]

    if needs == Needs():
        later = minibatches[1:] if run.settings.old_logprobs == "trainer" else []
        table.required = _completions_run(table, [*minibatches[:1], *later])
        completions = table.assignment.completions
        is_required = completions.send_back(table.required)
        drawn = draw_subset(table.rollouts, is_required, run.settings.scored_fraction, run.seed)
        table.drawn = completions.send(drawn)
        microbatches = equal(table.drawn.nonzero().flatten().tolist())
        return microbatches + [microbatch for minibatch in later for microbatch in minibatch.microbatches]
    table.required = torch.ones_like(table.required)
    microbatches = []
    for minibatch in minibatches:
        is_run = _completions_run(table, [minibatch])
        # As the update splits them: π_old must be the same to the last bit with and without a diagnostic.
        microbatches += [*equal([b for b in minibatch.completions if not is_run[b]]), *minibatch.microbatches]
    return microbatches


def _completions_run(table: StepTable, minibatches: Sequence[Minibatch]) -> Bool[Tensor, "sequences"]:
    is_run = torch.zeros_like(table.required)
    for part in (part for minibatch in minibatches for part in minibatch.active_microbatches):
        is_run[table.sequence_ids[part.token_index].cpu()] = True
    return is_run


def token_marks(run: Run, table: StepTable, minibatches: Sequence[Minibatch]) -> Float[Tensor, "tokens"]:
    """What the loss's `marks` says of each token; 0 on tokens that are dropped. Collective."""
    keys = token_keys(table, run.seed)
    marks = torch.zeros_like(table.advantages)
    for minibatch in minibatches:
        tokens = torch.isin(table.sequence_ids.cpu(), torch.tensor(minibatch.completions, dtype=torch.long))
        kept = tokens.to(table.device) & table.kept_tokens
        marks[kept] = run.loss.marks(
            MinibatchTokens(
                advantages=table.advantages[kept],
                is_correct=table.is_correct[kept],
                logprobs=table.rollout_logprobs[kept],
                keys=keys[kept],
                from_all_ranks=from_all_ranks,
            )
        )
    return marks


def token_keys(table: StepTable, seed: int) -> Int[Tensor, "tokens"]:
    """A hash of (run seed, step, prompt, sample, position) for each token, whichever rank it runs on; collective."""
    rollouts, size = table.rollouts, table.rollouts.group_size
    at_home = [
        sample_seed(seed, "tokens", rollouts.step, prompt.id, sample)
        for prompt in rollouts.prompts
        for sample in range(size)
    ]
    keys = table.assignment.completions.send(torch.tensor(at_home))
    positions = torch.cat([torch.arange(length) for length in table.lengths.tolist()])
    mixed = (keys.repeat_interleave(table.lengths) ^ (positions * ODD)) * ODD
    return (mixed ^ (mixed >> 32)).to(table.device)

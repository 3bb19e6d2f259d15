"""The passes without a gradient: what reference and sampling policy say of the tokens that someone will read."""

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.distributed.units import whole_root
from apo_lightning.losses import PolicyLoss
from apo_lightning.model.policy import Policy
from apo_lightning.model.reference import Reference
from apo_lightning.types import Advantages, Rollouts
from apo_lightning.update.minibatch_plan import even_microbatches
from apo_lightning.update.retry import within_budget
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.step_plan import StepPlan
from apo_lightning.update.table import StepTable


def score_reference(
    plan: StepPlan, reference: Reference | None, loss: PolicyLoss, settings: StepSettings, ranks: Ranks
) -> Bool[Tensor, "tokens"]:
    """Run the reference on the tokens that need it.

    Args:
        plan: of the step, whose table is filled in.
        reference: None where nothing needs it.
        loss: says which tokens it can use the reference on.
        settings: sizes of a step.
        ranks: all of them run equally many micro-batches.

    Returns:
        The tokens whose reference rows the loss may use.
    """
    table, diagnostics = plan.table, plan.diagnostic_needs
    loss_mask = loss.reference_mask(table.advantages, table.is_correct) & plan.updated
    needs = loss.needs | diagnostics
    if not needs.reference_statistics:
        return loss_mask
    assert reference is not None
    passes = []
    if diagnostics.reference_statistics:
        passes.append((torch.ones_like(loss_mask), diagnostics.anchor_size))
    # Again where a diagnostic has just looked: what the loss reads must be the same to the last bit, and that depends
    # on which completions are run together.
    if loss.needs.reference_statistics:
        passes.append((loss_mask, loss.needs.anchor_size))
    table.prepare_reference(needs.anchor_size)
    with whole_root(reference.policy):
        for wanted, anchor_size in passes:
            microbatches, _ = even_microbatches(table, table.completions_with(wanted), settings, ranks)
            for microbatch in microbatches:
                part = microbatch.part(wanted[microbatch.token_index])
                table.record_reference(part, reference.score(part, anchor_size, temperature=settings.temperature))
    return loss_mask


@torch.no_grad()
def score_policy(plan: StepPlan, policy: Policy, settings: StepSettings) -> None:
    """Fill in what the sampling policy says of what is to be scored, and of the anchors that a diagnostic reads."""
    table = plan.table
    with whole_root(policy):
        for microbatch in within_budget(table, plan.unscored, settings.tokens_per_microbatch):
            anchor_ids = table.anchor_ids(microbatch, plan.diagnostic_needs.anchor_size)
            table.record_policy(microbatch, policy(microbatch, anchor_ids, temperature=settings.temperature))


@torch.no_grad()
def score_for_check(table: StepTable, policy: Policy, settings: StepSettings, ranks: Ranks) -> None:
    """Score completions of every rank's engine of which no token has a log-prob yet.

    The ranks that run such completions run one micro-batch of them, and the others one of their own: under sharding a
    forward is a collective.
    """
    known = ~table.old_logprobs.isnan()
    num_known = ranks.sums([int(tokens.sum()) for tokens in table.by_sampler(known)])
    unknown = [b for b, rank in enumerate(table.assignment.sampled_by.tolist()) if not num_known[rank]]
    if not ranks.max(len(unknown)):
        return
    everything = range(len(table.lengths))
    microbatch = table.some_microbatch(unknown or everything, settings.tokens_per_microbatch)
    statistics = policy(microbatch, temperature=settings.temperature)
    if unknown:
        table.record_policy(microbatch, statistics)


def table_to_check(rollouts: Rollouts, device: torch.device) -> StepTable:
    """A table of completions that nothing is learnt from, to check the engine before any training step."""
    nothing = torch.zeros(len(rollouts.prompts), rollouts.group_size)
    return StepTable(rollouts, Advantages(values=nothing, keep=nothing.bool()), device)

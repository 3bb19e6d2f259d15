"""The passes without a gradient: what reference and sampling policy say of the tokens that someone will read."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool
from torch import Tensor

from apo_lightning.losses import PolicyLoss
from apo_lightning.plan import Minibatch, Ranks, even_microbatches
from apo_lightning.policy import Policy
from apo_lightning.reference import Reference
from apo_lightning.settings import StepSettings
from apo_lightning.step import StepTable
from apo_lightning.types import Needs


def score_reference(
    table: StepTable,
    reference: Reference | None,
    loss: PolicyLoss,
    watched: Needs,
    settings: StepSettings,
    ranks: Ranks,
) -> Bool[Tensor, "tokens"]:
    """Run the reference on the tokens that need it.

    Args:
        table: of the step; filled in.
        reference: None where nothing needs it.
        loss: says which tokens it can use the reference on.
        watched: what this step's diagnostics read.
        settings: sizes of a step.
        ranks: all of them run equally many micro-batches.

    Returns:
        The tokens whose reference rows the loss may use.
    """
    loss_mask = loss.reference_mask(table.advantages, table.is_correct) & table.kept_tokens
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
        reference.score(table, microbatches, wanted, anchor_size, temperature=settings.temperature)
    return loss_mask


@torch.no_grad()
def score_policy(
    table: StepTable,
    policy: Policy,
    plan: Sequence[Minibatch],
    watched: Needs,
    settings: StepSettings,
    ranks: Ranks,
) -> None:
    """Fill in what the sampling policy says of the tokens that the update's first step will not see.

    With one optimizer step a rollout the update itself sees them, unless they were dropped or a diagnostic asks for
    more: π_old is then the policy's own log-prob, detached, and costs no forward.
    """
    several = len(plan) > 1 and settings.old_logprobs == "trainer"
    for minibatch in plan:
        unseen = [b for b in minibatch.completions if not table.keep[b]]
        microbatches, _ = even_microbatches(table, unseen, settings, ranks)
        if several or watched != Needs():
            microbatches += minibatch.microbatches
        for microbatch in microbatches:
            anchor_ids = table.anchor_ids(microbatch, watched.anchor_size)
            table.record_policy(microbatch, policy(microbatch, anchor_ids, temperature=settings.temperature))

"""The passes without a gradient: what reference and sampling policy say of the tokens that are read later."""

import torch

from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.step.part import Setup
from apo_lightning.step.plan import StepPlan


def score_reference(setup: Setup, plan: StepPlan) -> None:
    """Record log π_ref and anchors in the plan's table, on the tokens where the loss or a diagnostic reads them."""
    table, diagnostics, loss_needs = plan.table, plan.diagnostic_needs, setup.loss.needs
    needs = loss_needs | diagnostics
    if not needs.reference_statistics:
        return
    assert setup.reference is not None
    passes = []
    if diagnostics.reference_statistics:
        passes.append((torch.ones_like(plan.reference_mask), diagnostics.anchor_size))
    # Again after a diagnostic's pass: what the loss reads must be the same to the last bit, and that depends on which
    # completions are run together.
    if loss_needs.reference_statistics:
        passes.append((plan.reference_mask, loss_needs.anchor_size))
    table.prepare_reference(needs.anchor_size)
    with unsharded_root(setup.reference.policy):
        for wanted, anchor_size in passes:
            for microbatch in setup.microbatches(table.sequences, table.completions_with(wanted)):
                part = microbatch.part(wanted[microbatch.token_index])
                statistics = setup.reference.score(part, anchor_size, temperature=setup.settings.temperature)
                table.record_reference(part, statistics)


@torch.no_grad()
def score_policy(setup: Setup, plan: StepPlan) -> None:
    """Record what the sampling policy says of `plan.unscored`, and of the anchors that a diagnostic reads."""
    table = plan.table
    with unsharded_root(setup.policy):
        for microbatch in plan.unscored:
            anchor_ids = table.anchor_ids(microbatch, plan.diagnostic_needs.anchor_size)
            statistics = setup.policy(microbatch, anchor_ids, temperature=setup.settings.temperature)
            table.record_policy(microbatch, statistics)

"""The passes without a gradient: what critic, reference and sampling policy say of the tokens that are read later."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages import gae_of
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.model.policy import Policy
from apo_lightning.types import Advantages, Rollouts
from apo_lightning.update.minibatch_plan import equalize_microbatches
from apo_lightning.update.run import Run
from apo_lightning.update.step_plan import StepPlan
from apo_lightning.update.table import StepTable


@torch.no_grad()
def score_values(run: Run, table: StepTable) -> None:
    """Record values and returns in the table, and replace its advantages by GAE's; nothing without a critic.

    All kept completions are run; on the others V is 0. Collective.
    """
    gae = gae_of(run.advantage)
    if run.critic is None or gae is None:
        return
    scored = torch.zeros_like(table.advantages)
    kept, budget = table.keep.nonzero().flatten().tolist(), run.settings.tokens_per_microbatch
    with unsharded_root(run.critic.policy):
        for microbatch in equalize_microbatches(table.sequences, kept, budget, run.ranks, table.device)[0]:
            scored[microbatch.token_index] = run.critic.values(microbatch)
    values = scored.cpu().double()
    # The estimator has given each completion its reward.
    rewards = table.advantages.cpu()[table.lengths.cumsum(0) - 1]
    advantages, returns = gae.of_values(rewards, values, table.lengths)
    columns = torch.stack([advantages, values, returns, returns - values])
    num, means, variances = moments(columns[:, table.kept_tokens.cpu()], run.ranks)
    advantages = gae.whitened(advantages, means[0], variances[0] * num / max(num - 1, 1))
    table.record_values(scored, returns, advantages)
    table.critic_metrics = {
        "critic/value_mean": means[1],
        "critic/return_mean": means[2],
        "critic/explained_variance": 1 - variances[3] / variances[2] if variances[2] > 0 else math.nan,
    }


def moments(columns: Float[Tensor, "columns tokens"], ranks: Ranks) -> tuple[float, list[float], list[float]]:
    """Number of tokens, means and population variances of float64 columns over all ranks; NaN without; collective."""
    sums = torch.stack([columns, columns.square()]).sum(2).flatten().tolist()
    num, *totals = ranks.sums([columns.shape[1], *sums])
    means, squares = torch.tensor(totals, dtype=torch.float64).view(2, -1) / num
    return num, means.tolist(), (squares - means.square()).clamp(min=0).tolist()


def score_reference(run: Run, plan: StepPlan) -> None:
    """Record log π_ref and anchors in the plan's table, on the tokens where the loss or a diagnostic reads them."""
    table, diagnostics, loss_needs = plan.table, plan.diagnostic_needs, run.loss.needs
    needs = loss_needs | diagnostics
    if not needs.reference_statistics:
        return
    assert run.reference is not None
    passes = []
    if diagnostics.reference_statistics:
        passes.append((torch.ones_like(plan.reference_mask), diagnostics.anchor_size))
    # Again after a diagnostic's pass: what the loss reads must be the same to the last bit, and that depends on which
    # completions are run together.
    if loss_needs.reference_statistics:
        passes.append((plan.reference_mask, loss_needs.anchor_size))
    table.prepare_reference(needs.anchor_size)
    with unsharded_root(run.reference.policy):
        for wanted, anchor_size in passes:
            completions, budget = table.completions_with(wanted), run.settings.tokens_per_microbatch
            parts, _ = equalize_microbatches(table.sequences, completions, budget, run.ranks, table.device)
            for microbatch in parts:
                part = microbatch.part(wanted[microbatch.token_index])
                statistics = run.reference.score(part, anchor_size, temperature=run.settings.temperature)
                table.record_reference(part, statistics)


@torch.no_grad()
def score_policy(run: Run, plan: StepPlan) -> None:
    """Record what the sampling policy says of `plan.unscored`, and of the anchors that a diagnostic reads."""
    table = plan.table
    with unsharded_root(run.policy):
        for microbatch in plan.unscored:
            anchor_ids = table.anchor_ids(microbatch, plan.diagnostic_needs.anchor_size)
            statistics = run.policy(microbatch, anchor_ids, temperature=run.settings.temperature)
            table.record_policy(microbatch, statistics)


@torch.no_grad()
def score_for_check(
    table: StepTable, policy: Policy, ranks: Ranks, tokens_per_microbatch: int, temperature: float
) -> None:
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
    microbatch = table.some_microbatch(unknown or everything, tokens_per_microbatch)
    statistics = policy(microbatch, temperature=temperature)
    if unknown:
        table.record_policy(microbatch, statistics)


def table_to_check(rollouts: Rollouts, device: torch.device) -> StepTable:
    """A table of completions that are not learnt from, to check the engine before any training step."""
    nothing = torch.zeros(len(rollouts.prompts), rollouts.group_size)
    return StepTable(rollouts, Advantages(values=nothing, keep=nothing.bool()), device)

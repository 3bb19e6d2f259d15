"""The critic's part of a step before the update: values of all tokens, and the advantages that follow from them."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.advantages import gae_of
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.update.minibatch_plan import equalize_microbatches
from apo_lightning.update.run import Run
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
    kept, budget = table.keep.nonzero().flatten().tolist(), run.memory.tokens_per_microbatch
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

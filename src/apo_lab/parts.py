"""Parts of the laboratory's methods (see `apo_lightning.step.part`): marks of tokens by their whole mini-batch."""

import torch
from jaxtyping import Int
from torch import Tensor

from apo_lab.losses.covariance import CovarianceGRPO, MinibatchTokens
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import StepPlan
from apo_lightning.step.table import StepTable
from apo_lightning.types import Advantages

ODD = 0x5851F42D4C957F2D
"""A 63-bit odd number: multiplied by a position it moves all bits of a key."""


class TokenMarks(Part):
    """Writes the column `marks`: what the loss's `marks` says of the kept tokens of each mini-batch, 0 on others."""

    name = "token_marks"
    columns = frozenset({"marks"})

    def planned(self, setup: Setup, plan: StepPlan, advantages: Advantages) -> None:
        """Ask the loss before the update; collective."""
        assert isinstance(setup.loss, CovarianceGRPO)
        table, keys = plan.table, token_keys(plan.table, setup.seed)
        marks = torch.zeros_like(table.advantages)
        for minibatch in plan.minibatches:
            tokens = torch.isin(table.sequence_ids.cpu(), torch.tensor(minibatch.completions, dtype=torch.long))
            kept = tokens.to(table.device) & table.kept_tokens
            marks[kept] = setup.loss.marks(
                MinibatchTokens(
                    advantages=table.advantages[kept],
                    is_correct=table.is_correct[kept],
                    logprobs=table.rollout_logprobs[kept],
                    keys=keys[kept],
                    from_all_ranks=from_all_ranks,
                )
            )
        table.columns["marks"] = marks


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

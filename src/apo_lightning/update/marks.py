"""Values of tokens that depend on the whole mini-batch, for losses that choose tokens among all of them."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.losses.minibatch_tokens import MinibatchTokens
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.update.minibatch_plan import Minibatch
from apo_lightning.update.run import Run
from apo_lightning.update.table import StepTable

ODD = 0x5851F42D4C957F2D
"""A 63-bit odd number: multiplied by a position it moves all bits of a key."""


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

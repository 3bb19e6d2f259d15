"""The completions that this rank runs in a step: those it sampled, or those that balance the ranks."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.exchange import Exchange
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.ranks import Ranks
from apo_lightning.step.balance import RankCosts, balanced
from apo_lightning.types import Advantages, Needs, Rollouts

TokenIds = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Which completions run here, and how their rows are sent here and back to the ranks that sampled them.

    They are ordered by the rank that sampled them, then by their place there.
    """

    prompts: tuple[TokenIds, ...]
    """Prompts of all completions that run here."""
    owners: tuple[int, ...]
    """[B] Which of the prompts each completion continues."""
    sampled_by: Int[Tensor, "sequences"]
    """The rank that sampled each completion."""
    places: Int[Tensor, "sequences"]
    """Its index among the completions of that rank."""
    completions: Exchange
    """Moves one row a completion."""
    tokens: Exchange
    """Moves one row a response token."""
    balance: float
    """Mean ÷ maximum of the ranks' tokens, in [1/W, 1]; see `balanced`."""


def assign_at_home(rollouts: Rollouts, device: torch.device) -> Assignment:
    """Each rank runs the completions that it sampled."""
    lengths = rollouts.lengths.flatten().tolist()
    at_home = [[0] * len(lengths)]
    return Assignment(
        prompts=tuple(prompt.token_ids for prompt in rollouts.prompts),
        owners=tuple(b // rollouts.group_size for b in range(len(lengths))),
        sampled_by=torch.full((len(lengths),), process_rank()),
        places=torch.arange(len(lengths)),
        completions=Exchange(at_home, [[1] * len(lengths)], 0, device),
        tokens=Exchange(at_home, [lengths], 0, device),
        balance=1.0,
    )


def assign(
    rollouts: Rollouts,
    advantages: Advantages,
    needs: Needs,
    num_minibatches: int,
    ranks: Ranks,
    device: torch.device,
) -> Assignment:
    """Assign completions so that all ranks take equally long for every mini-batch; collective.

    Advantages and needs, of the loss and the parts, say which completions can have a gradient, and on which the
    reference is read.
    """
    if ranks.world_size == 1:
        return assign_at_home(rollouts, device)
    costs = _costs(rollouts, advantages, needs)
    shares = from_all_ranks((costs, [prompt.token_ids for prompt in rollouts.prompts]))
    balance = balanced([costs for costs, _ in shares], num_minibatches)
    # A prompt occurs once for each rank that sampled it, and runs once for its completions of a micro-batch.
    prompts = tuple(prompt for _, prompts in shares for prompt in prompts)
    first_prompts = [0]
    for _, theirs in shares:
        first_prompts.append(first_prompts[-1] + len(theirs))
    here = [
        (rank, b)
        for rank, destinations in enumerate(balance.destinations)
        for b, destination in enumerate(destinations)
        if destination == ranks.rank
    ]
    sizes = [list(costs.lengths) for costs, _ in shares]
    return Assignment(
        prompts=prompts,
        owners=tuple(first_prompts[rank] + b // rollouts.group_size for rank, b in here),
        sampled_by=torch.tensor([rank for rank, _ in here], dtype=torch.long),
        places=torch.tensor([b for _, b in here], dtype=torch.long),
        completions=Exchange(balance.destinations, [[1] * len(lengths) for lengths in sizes], ranks.rank, device),
        tokens=Exchange(balance.destinations, sizes, ranks.rank, device),
        balance=balance.ratio,
    )


def _costs(rollouts: Rollouts, advantages: Advantages, needs: Needs) -> RankCosts:
    """The masks with one value a completion: all of its tokens have the same advantage, unless a part changes them."""
    values, is_correct = advantages.values.flatten().float(), rollouts.is_correct.flatten()
    runs = needs.gradient_mask(values, is_correct) & advantages.keep.flatten()
    reads_reference = runs & needs.reference_mask(values, is_correct) & needs.reference_statistics
    return RankCosts(
        prompt_lengths=[len(prompt.token_ids) for prompt in rollouts.prompts],
        lengths=rollouts.lengths.flatten().tolist(),
        runs=runs.tolist(),
        reads_reference=reads_reference.tolist(),
    )

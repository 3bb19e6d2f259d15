"""Which rank runs which completions of a step, so that all ranks take equally long for every mini-batch."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from apo_lightning.common.process_group import process_rank
from apo_lightning.distributed.gathering import Exchange, Ranks, from_all_ranks
from apo_lightning.model.packing import pack_evenly
from apo_lightning.types import Advantages, Needs, Rollouts

PIECES_PER_RANK = 3
"""Groups are divided where fewer than this run on each rank. The table in `balanced` shows the effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCosts:
    """The costs in tokens of the completions that one rank sampled, in prompt-major order."""

    prompt_lengths: Sequence[int]
    """[P]"""
    lengths: Sequence[int]
    """[P·G]"""
    runs: Sequence[bool]
    """[P·G] Whether the update runs the completion."""
    reads_reference: Sequence[bool]
    """[P·G] Whether the loss reads the reference on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPiece:
    """Completions of one prompt that run together, and their cost with that prompt [tokens]."""

    rank: int
    """The rank that sampled them."""
    completions: tuple[int, ...]
    tokens: int
    """Tokens that a forward of the policy runs."""
    reference_tokens: int
    """Tokens that a forward of the reference runs: only completions on which the loss reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The result of `balanced`."""

    destinations: list[list[int]]
    """For each rank, the rank that runs each of its completions."""
    ratio: float
    """Mean ÷ maximum of the ranks' tokens, both summed over mini-batches, in [1/W, 1]; NaN where nothing runs."""


def balanced(ranks: Sequence[RankCosts], num_minibatches: int) -> Balance:
    """Assign the running groups of every mini-batch to ranks; other completions stay on their rank.

    The groups of a mini-batch, largest first, go to the rank with the fewest tokens so far. Where fewer than
    `PIECES_PER_RANK` groups run per rank, they are divided, into at most as many pieces as give each rank that number,
    if it lowers the maximum; each piece runs the prompt again. Ranks wait for each other at the end of each mini-batch,
    so each mini-batch is balanced by itself. The reference runs once for the whole step: among equal loads of a
    mini-batch, the one with the most reference tokens goes to the rank that has the fewest of them.

    Share of the ranks' time that is work, simulated for 8 ranks, G = 8, 60 % of groups running, lognormal lengths:

        prompts of a mini-batch     8      16     32     64
        by position                0.40   0.50   0.59   0.67
        whole groups               0.40   0.69   0.92   0.96
        as here                    0.94   0.95   0.96   0.96

    Balancing the sum of the update's and the reference's tokens would balance neither phase: over the update, old
    log-probs and reference of 16 mini-batches the share is then 0.94, and 0.97 as here.

    Args:
        ranks: in rank order.
        num_minibatches: of the step; every rank has sampled equally many prompts of each.

    Example:
        Rank 0 has sampled two groups that run, rank 1 none.

        >>> busy = RankCosts(prompt_lengths=[1, 1], lengths=[5, 4], runs=[True] * 2, reads_reference=[False] * 2)
        >>> idle = RankCosts(prompt_lengths=[1, 1], lengths=[5, 4], runs=[False] * 2, reads_reference=[False] * 2)
        >>> balanced([busy, idle], num_minibatches=1)
        Balance(destinations=[[0, 1], [1, 1]], ratio=0.9166666666666666)
    """
    destinations = [[rank] * len(costs.lengths) for rank, costs in enumerate(ranks)]
    reference_loads, loads = [0] * len(ranks), [0] * len(ranks)
    mean = maximum = 0.0
    for minibatch in range(num_minibatches):
        groups = [
            piece
            for rank, costs in enumerate(ranks)
            for piece in _running_groups(costs, rank, minibatch, num_minibatches)
        ]
        bins = sorted(_even_bins(groups, ranks), key=lambda pieces: (-_reference_tokens(pieces), -_tokens(pieces)))
        receivers = sorted(range(len(ranks)), key=lambda rank: (reference_loads[rank], loads[rank]))
        for receiver, pieces in zip(receivers, bins, strict=False):
            loads[receiver] += _tokens(pieces)
            reference_loads[receiver] += _reference_tokens(pieces)
            for piece in pieces:
                for b in piece.completions:
                    destinations[piece.rank][b] = receiver
        mean += sum(map(_tokens, bins)) / len(ranks)
        maximum += max(map(_tokens, bins), default=0)
    return Balance(destinations=destinations, ratio=mean / maximum if maximum else math.nan)


def _running_groups(costs: RankCosts, rank: int, minibatch: int, num_minibatches: int) -> Iterator[RunningPiece]:
    """The running groups that one rank has sampled for a mini-batch."""
    group_size = len(costs.lengths) // len(costs.prompt_lengths)
    prompts = len(costs.prompt_lengths) // num_minibatches
    for p in range(minibatch * prompts, (minibatch + 1) * prompts):
        running = [b for b in range(p * group_size, (p + 1) * group_size) if costs.runs[b]]
        if running:
            yield _piece(costs, rank, p, running)


def _piece(costs: RankCosts, rank: int, prompt: int, completions: Sequence[int]) -> RunningPiece:
    read = [b for b in completions if costs.reads_reference[b]]
    prompt_length = costs.prompt_lengths[prompt]
    return RunningPiece(
        rank=rank,
        completions=tuple(completions),
        tokens=prompt_length + sum(costs.lengths[b] for b in completions),
        reference_tokens=prompt_length * bool(read) + sum(costs.lengths[b] for b in read),
    )


def _divided(group: RunningPiece, costs: RankCosts, num_pieces: int) -> Iterator[RunningPiece]:
    group_size = len(costs.lengths) // len(costs.prompt_lengths)
    lengths = [costs.lengths[b] for b in group.completions]
    for items in pack_evenly(lengths, math.inf, at_least=num_pieces):
        completions = [group.completions[i] for i in items]
        yield _piece(costs, group.rank, completions[0] // group_size, completions)


def _even_bins(groups: Sequence[RunningPiece], ranks: Sequence[RankCosts]) -> list[list[RunningPiece]]:
    """At most one bin a rank; groups are divided into the fewest pieces that leave the fullest bin least."""
    most_pieces = -(-PIECES_PER_RANK * len(ranks) // max(1, len(groups)))
    candidates = [_packed(groups, len(ranks))]
    for num_pieces in range(2, most_pieces + 1) if groups else ():
        pieces = [piece for group in groups for piece in _divided(group, ranks[group.rank], num_pieces)]
        candidates.append(_packed(pieces, len(ranks)))
    return min(candidates, key=lambda bins: max(map(_tokens, bins), default=0))


def _packed(pieces: Sequence[RunningPiece], num_bins: int) -> list[list[RunningPiece]]:
    bins = pack_evenly([piece.tokens for piece in pieces], math.inf, at_least=num_bins)
    return [[pieces[i] for i in items] for items in bins]


def _tokens(pieces: Sequence[RunningPiece]) -> int:
    return sum(piece.tokens for piece in pieces)


def _reference_tokens(pieces: Sequence[RunningPiece]) -> int:
    return sum(piece.reference_tokens for piece in pieces)


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
    """The masks with one value a completion, whose tokens have one advantage; a part that changes this has `needs`."""
    values, is_correct = advantages.values.flatten().float(), rollouts.is_correct.flatten()
    runs = needs.gradient_mask(values, is_correct) & advantages.keep.flatten()
    reads_reference = runs & needs.reference_mask(values, is_correct) & needs.reference_statistics
    return RankCosts(
        prompt_lengths=[len(prompt.token_ids) for prompt in rollouts.prompts],
        lengths=rollouts.lengths.flatten().tolist(),
        runs=runs.tolist(),
        reads_reference=reads_reference.tolist(),
    )

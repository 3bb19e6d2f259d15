"""Ragged sequences → micro-batches under a token budget → tensors.

A *mini-batch* is one optimizer step and part of the algorithm. A *micro-batch* is one forward and backward and only a
matter of memory: the token weights are fixed before the split, so it cannot change the result.

A micro-batch is a flat list of positions without padding, with each prompt once for all its completions:

    [prompt 0][completion 0][completion 1] … [prompt 1][completion 2] …

Where all prompts have a long beginning in common, such as examples, that may stand once before them all.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A prompt and the completions that attend to it, contiguous among a micro-batch's positions."""

    start: int
    """Position of the prompt's first token."""
    prompt_length: int
    """Number of positions."""
    completion_lengths: tuple[int, ...]
    """Positions of each completion: all its tokens but the last, which predicts nothing. May be 0."""
    beginning: int = 0
    """The first positions of the micro-batch, to which the group attends as well: what all prompts begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Whole completions after their prompts, and the positions that predict their tokens."""

    input_ids: Int[Tensor, "positions"]
    position_ids: Int[Tensor, "positions"]
    """Index of each position in its own sequence; a completion continues its prompt's."""
    groups: tuple[Group, ...]
    """The groups in order, without gaps; they determine which positions attend to which."""
    rows: Int[Tensor, "tokens"]
    """Position of the hidden state that *predicts* each response token, one before the token in its sequence."""
    targets: Int[Tensor, "tokens"]
    """The response tokens themselves."""
    token_index: Int[Tensor, "tokens"]
    """Index of each token among all response tokens of the step."""

    def part(self, tokens: slice | Tensor) -> "Microbatch":
        """The same forward pass, with hidden states read at these tokens (a slice, an index or a mask) alone."""
        tokens = tokens if isinstance(tokens, slice) else tokens.to(self.rows.device)
        return replace(self, rows=self.rows[tokens], targets=self.targets[tokens], token_index=self.token_index[tokens])


def pack_evenly(costs: Sequence[int], capacity: int | float, at_least: int = 1) -> list[list[int]]:
    """Distribute items to few bins of nearly equal cost, none above the capacity but of one item alone.

    Items go to the lightest bin in descending order of cost (Graham's LPT rule). The number of bins is at most 2 %
    above the smallest one for which that fits.

    Args:
        costs: of the items, each ≥ 0.
        capacity: of a bin, > 0.
        at_least: wanted number of bins, as far as there are enough items and the split fits.

    Returns:
        Ascending item indices of each bin; bins ordered by their first item.

    Example:
        10 and 5 + 4: with a capacity of 10, two bins hold all three.

        >>> pack_evenly([4, 10, 5], capacity=10)
        [[0, 2], [1]]
    """
    if not costs:
        return []
    num_large = sum(cost > capacity / 2 for cost in costs)  # no two of them share a bin
    num_bins = min(max(1, num_large, math.ceil(sum(costs) / capacity)), len(costs))
    bins = _lightest_first(costs, num_bins)
    while not _fits(bins, costs, capacity):
        num_bins = min(num_bins + max(1, num_bins // 50), len(costs))
        bins = _lightest_first(costs, num_bins)
    if num_bins < at_least:
        more = _lightest_first(costs, min(at_least, len(costs)))
        # In rare cases another bin makes the fullest bin fuller.
        bins = more if _fits(more, costs, capacity) else bins
    return sorted(sorted(items) for items in bins)


def _lightest_first(costs: Sequence[int], num_bins: int) -> list[list[int]]:
    """Items in descending cost, each to the bin with the lowest cost so far, then the fewest items."""
    bins: list[tuple[int, int, int, list[int]]] = [(0, 0, i, []) for i in range(num_bins)]
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        cost, count, i, items = bins[0]
        items.append(item)
        heapq.heapreplace(bins, (cost + costs[item], count + 1, i, items))
    return [items for _, _, _, items in bins]


def _fits(bins: Sequence[Sequence[int]], costs: Sequence[int], capacity: int | float) -> bool:
    return all(len(items) == 1 or sum(costs[i] for i in items) <= capacity for items in bins)


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """The step's prompts [P] and completions [B] as token ids; response tokens of all completions are packed to [T]."""

    prompts: Sequence[tuple[int, ...]]
    completions: Sequence[tuple[int, ...]]
    owners: Sequence[int]
    """[B] Index of each completion's prompt."""
    beginning: int = 0
    """The first tokens of every prompt that stand once in a micro-batch; fewer than the shortest prompt has."""

    @classmethod
    def of(cls, prompts: Sequence[tuple[int, ...]], completions: Sequence[Sequence[int]]) -> "PackedSequences":
        """Completions and the prompt of each; equal prompts stand there once, in order of first appearance."""
        places = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        owners = [places[prompt] for prompt in prompts]
        return cls(prompts=list(places), completions=[tuple(ids) for ids in completions], owners=owners)

    @property
    def starts(self) -> list[int]:
        """Index of each completion's first token in the packed [T]."""
        return list(accumulate(map(len, self.completions), initial=0))[:-1]

    def microbatches(
        self, sequences: Sequence[int], tokens_per_microbatch: int, device: torch.device, *, at_least: int = 1
    ) -> list[Microbatch]:
        """The given completions in micro-batches of nearly equal cost; `split` divides them."""
        starts = self.starts
        return [
            self._microbatch(members, starts, device)
            for members in self.split(sequences, tokens_per_microbatch, at_least=at_least)
        ]

    def split(self, sequences: Sequence[int], tokens_per_microbatch: int, *, at_least: int = 1) -> list[list[int]]:
        """Indices of the completions of each micro-batch, within a budget of tokens.

        A prompt counts once per micro-batch. `at_least` micro-batches are made if there are enough completions.
        The completions of one prompt stay together. They are divided, and the prompt runs once with each part, where
        they exceed the budget or there are fewer prompts than micro-batches wanted. Only a single completion may
        exceed the budget.

        Example:
            A prompt of 6 tokens and another of 4, with two completions of 2 each: 10 + 8 tokens.

            >>> packed = PackedSequences(prompts=[(1,) * 6, (2,) * 4], completions=[(3, 4)] * 4, owners=[0, 0, 1, 1])
            >>> packed.split(range(4), tokens_per_microbatch=18), packed.split(range(4), tokens_per_microbatch=17)
            ([[0, 1, 2, 3]], [[0, 1], [2, 3]])
            >>> packed.split(range(4), tokens_per_microbatch=17, at_least=3)
            [[0], [1], [2, 3]]
        """
        by_owner: dict[int, list[int]] = {}
        for sequence in sorted(sequences):
            by_owner.setdefault(self.owners[sequence], []).append(sequence)
        parts: list[list[int]] = []
        for owner, members in by_owner.items():
            parts += self._divide(members, max(1, tokens_per_microbatch - len(self.prompts[owner])))
        while len(parts) < at_least and (divisible := [part for part in parts if len(part) > 1]):
            largest = min(divisible, key=lambda part: (-self._cost(part), part))
            parts.remove(largest)
            parts += self._divide(largest, math.inf, at_least=2)
        budget = max(1, tokens_per_microbatch - self.beginning)
        bins = pack_evenly([self._cost(part) for part in parts], budget, at_least)
        return sorted(sorted(sequence for i in items for sequence in parts[i]) for items in bins)

    def _divide(self, members: Sequence[int], capacity: int | float, at_least: int = 1) -> list[list[int]]:
        bins = pack_evenly([len(self.completions[b]) for b in members], capacity, at_least)
        return [[members[i] for i in items] for items in bins]

    def _cost(self, part: Sequence[int]) -> int:
        """Tokens of some completions of one prompt, including the prompt without the common beginning."""
        own = len(self.prompts[self.owners[part[0]]]) - self.beginning
        return own + sum(len(self.completions[b]) for b in part)

    def _microbatch(self, members: Sequence[int], starts: Sequence[int], device: torch.device) -> Microbatch:
        first = self.beginning
        input_ids = [*self.prompts[self.owners[members[0]]][:first]]
        position_ids = [*range(first)]
        rows: list[int] = []
        groups: list[Group] = []
        by_owner = sorted(members, key=lambda b: (self.owners[b], b))
        for owner, sequences in groupby(by_owner, key=lambda b: self.owners[b]):
            prompt, completions = self.prompts[owner][first:], [self.completions[b] for b in sequences]
            lengths = tuple(len(completion) - 1 for completion in completions)
            start, end = len(input_ids), first + len(prompt)
            groups.append(Group(start=start, prompt_length=len(prompt), completion_lengths=lengths, beginning=first))
            input_ids += prompt
            position_ids += range(first, end)
            last_of_prompt = len(input_ids) - 1
            for completion, length in zip(completions, lengths, strict=True):
                rows += [last_of_prompt, *range(len(input_ids), len(input_ids) + length)]
                input_ids += completion[:-1]
                position_ids += range(end, end + length)
        return Microbatch(
            input_ids=on_device(torch.tensor(input_ids), device),
            position_ids=on_device(torch.tensor(position_ids), device),
            groups=tuple(groups),
            rows=on_device(torch.tensor(rows), device),
            targets=on_device(torch.tensor([token for b in by_owner for token in self.completions[b]]), device),
            token_index=on_device(
                torch.cat([torch.arange(len(self.completions[b])) + starts[b] for b in by_owner]), device
            ),
        )


def on_device(values: Tensor, device: torch.device) -> Tensor:
    """The host's values on a device; copied from pageable memory, they would make the host wait for a GPU."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else values.to(device)


def padding_microbatch(device: torch.device) -> Microbatch:
    """A micro-batch without response tokens, for a rank that must run a forward when it has none left."""
    # Two positions: compiled layers would need another graph for a length of 1.
    stand_in = PackedSequences(prompts=[(0, 0)], completions=[(0,)], owners=[0])
    return stand_in.microbatches([0], 1, device)[0].part(slice(0, 0))

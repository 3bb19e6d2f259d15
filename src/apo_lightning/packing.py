"""Ragged sequences → mini-batches of prompts → micro-batches under a token budget → tensors.

A *mini-batch* is one optimizer step and is part of the algorithm; a *micro-batch* is one forward and backward and
is a matter of memory alone: the token weights are fixed before the split, so it cannot change the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Whole completions with their prompts, padded on the right, and where their response tokens are read off."""

    input_ids: Int[Tensor, "batch length"]
    attention_mask: Bool[Tensor, "batch length"]
    """True on prompt and completion, False on padding."""
    rows: Int[Tensor, "tokens"]
    """Flat position in [batch · length] whose hidden state *predicts* the response token, one to its left."""
    targets: Int[Tensor, "tokens"]
    """The response tokens themselves."""
    token_index: Int[Tensor, "tokens"]
    """Where these tokens stand among all response tokens of the step."""

    def only(self, wanted: Bool[Tensor, "tokens"]) -> "Microbatch":
        """The same forward, read off at fewer tokens."""
        wanted = wanted.to(self.rows.device)
        return replace(self, rows=self.rows[wanted], targets=self.targets[wanted], token_index=self.token_index[wanted])


def minibatches(num_prompts: int, group_size: int, prompts_per_minibatch: int) -> list[range]:
    """Completions of each mini-batch: by prompt, in sampling order, before anything is dropped.

    Example:
        >>> minibatches(num_prompts=4, group_size=2, prompts_per_minibatch=2)
        [range(0, 4), range(4, 8)]
    """
    return [
        range(first * group_size, min(first + prompts_per_minibatch, num_prompts) * group_size)
        for first in range(0, num_prompts, prompts_per_minibatch)
    ]


def split_by_token_budget(
    sequences: Sequence[int], lengths: Sequence[int], tokens_per_microbatch: int
) -> list[list[int]]:
    """Group sequences so that each group, padded to its longest, stays within the budget.

    Longest first, so that neighbours have like lengths and little is padded. A sequence longer than the budget is
    a group of its own: it cannot be split, and dropping it would change the algorithm.

    Args:
        sequences: which sequences to place (indices into `lengths`).
        lengths: prompt and completion together [tokens].
        tokens_per_microbatch: the budget, padding included [tokens].

    Example:
        >>> split_by_token_budget([0, 1, 2], lengths=[4, 10, 5], tokens_per_microbatch=10)
        [[1], [2, 0]]
    """
    groups: list[list[int]] = []
    longest = 0
    for sequence in sorted(sequences, key=lambda index: (-lengths[index], index)):
        if not groups or longest * (len(groups[-1]) + 1) > tokens_per_microbatch:
            groups.append([])
            longest = lengths[sequence]
        groups[-1].append(sequence)
    return groups


@dataclass(frozen=True, slots=True)
class PackedSequences:
    """The step's prompts and completions as token ids, with the place of each response token in the packed [T]."""

    prompts: Sequence[tuple[int, ...]]
    """[B] The prompt of each completion."""
    completions: Sequence[tuple[int, ...]]
    """[B]"""

    @property
    def lengths(self) -> list[int]:
        """Prompt and completion together [tokens]."""
        return [
            len(prompt) + len(completion) for prompt, completion in zip(self.prompts, self.completions, strict=True)
        ]

    @property
    def starts(self) -> list[int]:
        """Where each completion begins in the packed [T]."""
        starts, position = [], 0
        for completion in self.completions:
            starts.append(position)
            position += len(completion)
        return starts

    def microbatches(
        self, sequences: Sequence[int], tokens_per_microbatch: int, device: torch.device
    ) -> list[Microbatch]:
        """The given completions in token-budget groups, ready for a forward."""
        starts = self.starts
        groups = split_by_token_budget(sequences, self.lengths, tokens_per_microbatch)
        return [self._microbatch(group, starts, device) for group in groups]

    def _microbatch(self, group: Sequence[int], starts: Sequence[int], device: torch.device) -> Microbatch:
        length = max(len(self.prompts[b]) + len(self.completions[b]) for b in group)
        input_ids = torch.zeros(len(group), length, dtype=torch.long)
        attention_mask = torch.zeros(len(group), length, dtype=torch.bool)
        rows, targets, token_index = [], [], []
        for row, b in enumerate(group):
            prompt, completion = self.prompts[b], self.completions[b]
            total = len(prompt) + len(completion)
            input_ids[row, :total] = torch.tensor(prompt + completion)
            attention_mask[row, :total] = True
            rows.append(torch.arange(len(completion)) + row * length + len(prompt) - 1)
            targets.append(torch.tensor(completion))
            token_index.append(torch.arange(len(completion)) + starts[b])
        return Microbatch(
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            rows=torch.cat(rows).to(device),
            targets=torch.cat(targets).to(device),
            token_index=torch.cat(token_index).to(device),
        )

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
class SharedPrompts:
    """The prompts of a micro-batch, each once, for its completions to attend to."""

    input_ids: Int[Tensor, "prompts prompt_length"]
    attention_mask: Bool[Tensor, "prompts prompt_length"]
    owner: Int[Tensor, "batch"]
    """Which prompt each completion continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """Whole completions, padded on the right, and where their response tokens are read off."""

    prompts: SharedPrompts | None
    """None: every row of `input_ids` begins with its own prompt."""
    input_ids: Int[Tensor, "batch length"]
    attention_mask: Bool[Tensor, "batch length"]
    """False on padding."""
    rows: Int[Tensor, "tokens"]
    """Position of the hidden state that *predicts* each response token, one to its left.

    It counts the flattened `prompts.input_ids` first, where there are any, and then the flattened `input_ids`.
    """
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


def split_by_shared_budget(
    sequences: Sequence[int],
    owners: Sequence[int],
    prompt_lengths: Sequence[int],
    completion_lengths: Sequence[int],
    tokens_per_microbatch: int,
) -> list[list[int]]:
    """As `split_by_token_budget`, where a prompt counts once for all its completions that stand together.

    The order is kept, so that the completions of a prompt stay together.

    Args:
        sequences: which completions to place.
        owners: the prompt of every completion.
        prompt_lengths: of every completion's prompt [tokens].
        completion_lengths: [tokens]
        tokens_per_microbatch: the budget, padding included [tokens].

    Example:
        Two prompts of 6 tokens with two completions of 2: 6 + 2·2 = 10 tokens each.

        >>> split_by_shared_budget([0, 1, 2, 3], [0, 0, 1, 1], [6] * 4, [2] * 4, tokens_per_microbatch=10)
        [[0, 1], [2, 3]]
    """
    groups: list[list[int]] = []
    for sequence in sequences:
        candidate = [*groups[-1], sequence] if groups else [sequence]
        num_prompts = len({owners[i] for i in candidate})
        prompt_tokens = num_prompts * max(prompt_lengths[i] for i in candidate)
        completion_tokens = len(candidate) * max(completion_lengths[i] for i in candidate)
        if groups and prompt_tokens + completion_tokens <= tokens_per_microbatch:
            groups[-1] = candidate
        else:
            groups.append([sequence])
    return groups


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSequences:
    """The step's prompts and completions as token ids, with the place of each response token in the packed [T]."""

    prompts: Sequence[tuple[int, ...]]
    """[P]"""
    completions: Sequence[tuple[int, ...]]
    """[B] in prompt-major order."""
    owners: Sequence[int]
    """[B] Which prompt each completion continues."""

    @property
    def starts(self) -> list[int]:
        """Where each completion begins in the packed [T]."""
        starts, position = [], 0
        for completion in self.completions:
            starts.append(position)
            position += len(completion)
        return starts

    def microbatches(
        self, sequences: Sequence[int], tokens_per_microbatch: int, device: torch.device, *, share_prompts: bool
    ) -> list[Microbatch]:
        """The given completions in token-budget groups, ready for a forward.

        Args:
            sequences: which completions.
            tokens_per_microbatch: padding included [tokens].
            device: where the tensors go.
            share_prompts: run each prompt once for all its completions of a micro-batch. Same numbers, fewer tokens.
        """
        starts = self.starts
        prompt_lengths = [len(self.prompts[owner]) for owner in self.owners]
        lengths = [len(completion) for completion in self.completions]
        if share_prompts:
            groups = split_by_shared_budget(sequences, self.owners, prompt_lengths, lengths, tokens_per_microbatch)
            return [self._sharing(group, starts, device) for group in groups]
        whole = [a + b for a, b in zip(prompt_lengths, lengths, strict=True)]
        return [
            self._whole(group, starts, device)
            for group in split_by_token_budget(sequences, whole, tokens_per_microbatch)
        ]

    def _whole(self, group: Sequence[int], starts: Sequence[int], device: torch.device) -> Microbatch:
        """Each completion behind a prompt of its own."""
        texts = [self.prompts[self.owners[b]] + self.completions[b] for b in group]
        input_ids, attention_mask = _padded(texts)
        rows = [
            torch.arange(len(self.completions[b])) + row * input_ids.shape[1] + len(self.prompts[self.owners[b]]) - 1
            for row, b in enumerate(group)
        ]
        return self._microbatch(group, starts, device, None, input_ids, attention_mask, rows)

    def _sharing(self, group: Sequence[int], starts: Sequence[int], device: torch.device) -> Microbatch:
        """Each prompt once: its last position predicts each first token, and a completion's last predicts nothing."""
        owners = sorted({self.owners[b] for b in group})
        place = {owner: i for i, owner in enumerate(owners)}
        prompt_ids, prompt_mask = _padded([self.prompts[owner] for owner in owners])
        input_ids, attention_mask = _padded([self.completions[b][:-1] for b in group])
        rows = []
        for row, b in enumerate(group):
            owner = self.owners[b]
            first = place[owner] * prompt_ids.shape[1] + len(self.prompts[owner]) - 1
            rest = torch.arange(len(self.completions[b]) - 1) + prompt_ids.numel() + row * input_ids.shape[1]
            rows.append(torch.cat([torch.tensor([first]), rest]))
        prompts = SharedPrompts(
            input_ids=prompt_ids.to(device),
            attention_mask=prompt_mask.to(device),
            owner=torch.tensor([place[self.owners[b]] for b in group]).to(device),
        )
        return self._microbatch(group, starts, device, prompts, input_ids, attention_mask, rows)

    def _microbatch(
        self,
        group: Sequence[int],
        starts: Sequence[int],
        device: torch.device,
        prompts: SharedPrompts | None,
        input_ids: Tensor,
        attention_mask: Tensor,
        rows: Sequence[Tensor],
    ) -> Microbatch:
        return Microbatch(
            prompts=prompts,
            input_ids=input_ids.to(device),
            attention_mask=attention_mask.to(device),
            rows=torch.cat(list(rows)).to(device),
            targets=torch.tensor([token for b in group for token in self.completions[b]]).to(device),
            token_index=torch.cat([torch.arange(len(self.completions[b])) + starts[b] for b in group]).to(device),
        )


def _padded(texts: Sequence[tuple[int, ...]]) -> tuple[Int[Tensor, "batch length"], Bool[Tensor, "batch length"]]:
    """Token ids with zeros on the right, and True where they are no padding."""
    length = max(len(text) for text in texts)
    input_ids = torch.zeros(len(texts), length, dtype=torch.long)
    mask = torch.zeros(len(texts), length, dtype=torch.bool)
    for row, text in enumerate(texts):
        input_ids[row, : len(text)] = torch.tensor(text, dtype=torch.long)
        mask[row, : len(text)] = True
    return input_ids, mask

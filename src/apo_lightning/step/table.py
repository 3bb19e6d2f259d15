"""The table of one training step: one row for each response token, filled in stage by stage, read by the loss."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.common.process_group import num_processes
from apo_lightning.model.packing import Microbatch, PackedSequences, padding_microbatch
from apo_lightning.step.assignment import Assignment, assign_at_home
from apo_lightning.types import (
    Advantages,
    Anchor,
    ReferenceStatistics,
    Rollouts,
    StepTokens,
    TokenStatistics,
)


class StepTable:
    """The one mutable record of a step; `freeze` makes the callbacks' copy.

    Rows stand in packed order, completion after completion: those of `Rollouts.completions`, or with several ranks
    those that the `Assignment` gives to this rank. Each stage writes the rows that it computed, the others stay NaN
    (log-probs) or absent (anchors):

        column                              written by
        advantages                          the estimator; a part may replace them
        columns                             parts, by name
        ref_logprobs, anchor (but π)        score_reference, through record_reference
        old_logprobs, entropy, max_prob,    score_policy and the first mini-batch of the update, through record_policy
        is_scored, anchor.logprobs

    All other columns are made here and never change.

    Args:
        rollouts: sampled by this rank.
        advantages: of them.
        device: of the policy.
        assignment: which completions run here; None: those that this rank has sampled. With one, collective.
    """

    def __init__(
        self, rollouts: Rollouts, advantages: Advantages, device: torch.device, assignment: Assignment | None = None
    ) -> None:
        assignment = assignment or assign_at_home(rollouts, device)
        by_completion, by_token = assignment.completions.send, assignment.tokens.send
        completions = rollouts.completions
        self.rollouts = rollouts
        self.device = device
        self.assignment = assignment
        self.lengths: Int[Tensor, "sequences"] = by_completion(rollouts.lengths.flatten())
        self.keep: Bool[Tensor, "sequences"] = by_completion(advantages.keep.flatten())
        owner = torch.arange(len(self.lengths)).repeat_interleave(self.lengths)
        self.sequence_ids: Int[Tensor, "tokens"] = owner.to(device)
        token_ids = by_token(torch.tensor([i for c in completions for i in c.token_ids]))
        self.token_ids = token_ids.to(device)
        self.rollout_logprobs = by_token(torch.tensor([value for c in completions for value in c.logprobs])).to(device)
        self.advantages = by_completion(advantages.values.flatten())[owner].float().to(device)
        self.is_correct = by_completion(rollouts.is_correct.flatten())[owner].to(device)
        self.sequences = PackedSequences(
            prompts=assignment.prompts,
            completions=[tuple(ids.tolist()) for ids in token_ids.split(self.lengths.tolist())],
            owners=assignment.owners,
        )
        self.old_logprobs = self._unknown()
        self.entropy = self._unknown()
        self.max_prob = self._unknown()
        self.is_scored: Bool[Tensor, "tokens"] = torch.zeros_like(self.is_correct)
        self.columns: dict[str, Float[Tensor, "tokens"]] = {}
        self.ref_logprobs: Tensor | None = None
        self.anchor: Anchor | None = None

    def _unknown(self) -> Float[Tensor, "tokens"]:
        return torch.full_like(self.rollout_logprobs, torch.nan)

    def some_microbatch(self, completions: Sequence[int], tokens_per_microbatch: int) -> Microbatch:
        """The first micro-batch of the given completions, or one of padding alone if there are none.

        Under sharding every forward is a collective, so a rank without work runs that one too.
        """
        if completions:
            return self.sequences.microbatches(completions, tokens_per_microbatch, self.device)[0]
        return padding_microbatch(self.device)

    def completions_with(self, wanted: Bool[Tensor, "tokens"]) -> list[int]:
        """Completions that have a wanted token, ascending."""
        return self.sequence_ids[wanted].unique().tolist()

    def prepare_reference(self, anchor_size: int) -> None:
        """Allocate the reference's columns; every row is absent until it is recorded."""
        num_tokens = len(self.token_ids)
        self.ref_logprobs = self._unknown()
        if anchor_size > 0:
            absent = torch.full((num_tokens, anchor_size), -torch.inf, device=self.device)
            ids = torch.full((num_tokens, anchor_size), -1, dtype=torch.long, device=self.device)
            self.anchor = Anchor(token_ids=ids, ref_logprobs=absent, logprobs=absent.clone())

    def record_reference(self, microbatch: Microbatch, statistics: ReferenceStatistics) -> None:
        """Write the reference's statistics of these tokens."""
        assert self.ref_logprobs is not None
        index = microbatch.token_index
        self.ref_logprobs[index] = statistics.logprobs
        if statistics.anchor_ids is not None and statistics.anchor_logprobs is not None:
            assert self.anchor is not None
            slots = statistics.anchor_ids.shape[1]
            self.anchor.token_ids[index, :slots] = statistics.anchor_ids.long()
            self.anchor.ref_logprobs[index, :slots] = statistics.anchor_logprobs

    def record_policy(self, microbatch: Microbatch, statistics: TokenStatistics) -> None:
        """Write the statistics of the policy that sampled these tokens."""
        index = microbatch.token_index
        self.old_logprobs[index] = statistics.logprobs.detach()
        self.entropy[index] = statistics.entropy.detach()
        self.max_prob[index] = statistics.max_prob
        self.is_scored[index] = True
        if self.anchor is not None and statistics.anchor_logprobs is not None:
            slots = statistics.anchor_logprobs.shape[1]
            found = statistics.anchor_logprobs.detach()
            # The update asks at the loss's own tokens only; what a diagnostic read at the others stays.
            known = self.anchor.logprobs[index, :slots]
            self.anchor.logprobs[index, :slots] = torch.where(found == -torch.inf, known, found)

    @property
    def kept_tokens(self) -> Bool[Tensor, "tokens"]:
        """Tokens whose completion takes part in the update."""
        return self.keep.to(self.device)[self.sequence_ids]

    def anchor_ids(
        self, microbatch: Microbatch, anchor_size: int, wanted: Bool[Tensor, "tokens"] | None = None
    ) -> Int[Tensor, "part anchors"] | None:
        """The first `anchor_size` anchors of these tokens, absent (−1) where not wanted; None: no anchors."""
        if self.anchor is None or anchor_size == 0:
            return None
        ids = self.anchor.token_ids[microbatch.token_index, :anchor_size]
        return ids if wanted is None else ids.masked_fill(~wanted[microbatch.token_index, None], -1)

    def of_minibatch(self, minibatch: int, prompts_per_minibatch: int) -> list[int]:
        """The completions that run here of a mini-batch, for which each rank sampled as many prompts."""
        places = self.assignment.places // (prompts_per_minibatch * self.rollouts.group_size)
        return (places == minibatch).nonzero().flatten().tolist()

    def by_sampler(self, tokens: Bool[Tensor, "tokens"]) -> list[Bool[Tensor, "tokens"]]:
        """For each rank, the given tokens that its engine sampled."""
        samplers = self.assignment.sampled_by.to(self.device)[self.sequence_ids]
        return [tokens & (samplers == rank) for rank in range(num_processes())]

    def freeze(self) -> StepTokens:
        """The rows of the tokens that this rank sampled, on whichever rank they ran; collective."""
        home, lengths = self.assignment.tokens.send_back, self.rollouts.lengths.flatten()
        anchor = self.anchor
        if anchor is not None:
            anchor = Anchor(
                token_ids=home(anchor.token_ids),
                ref_logprobs=home(anchor.ref_logprobs),
                logprobs=home(anchor.logprobs),
            )
        return StepTokens(
            token_ids=home(self.token_ids),
            sequence_ids=torch.arange(len(lengths)).repeat_interleave(lengths).to(self.device),
            advantages=home(self.advantages),
            is_correct=home(self.is_correct),
            rollout_logprobs=home(self.rollout_logprobs),
            old_logprobs=home(self.old_logprobs),
            entropy=home(self.entropy),
            max_prob=home(self.max_prob),
            is_scored=home(self.is_scored),
            ref_logprobs=None if self.ref_logprobs is None else home(self.ref_logprobs),
            anchor=anchor,
        )

"""A second term of the loss, on completions that the model sampled before the run: `algo.auxiliary`."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.distributed.root_params import unsharded_root
from apo_lightning.errors import ConfigError
from apo_lightning.model.flops import Work, work_of
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.types import LossOutput, Prompt
from apo_lightning.update.minibatch_plan import equalize_microbatches
from apo_lightning.update.run import Run

MOST_GAP = 0.05
"""Largest mean difference between stored and own log-probs [nats a token]: engines differ by a tenth of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Completions of the model before training."""

    sequences: PackedSequences
    logprobs: Sequence[float]
    """[B] log π_ref of each whole completion when it was sampled [nats]."""


@runtime_checkable
class AuxiliaryTerm(Protocol):
    """A loss on stored completions, added in every optimizer step."""

    @property
    def completions_per_minibatch(self) -> int:
        """Drawn for each optimizer step, over all ranks."""
        ...

    def load(self, prompts: Sequence[Prompt], tokenizer: PreTrainedTokenizerBase, max_completion_tokens: int) -> Stored:
        """The completions, of these training prompts; raises `ConfigError`, before any weights are loaded."""
        ...

    def __call__(self, logprobs: Float[Tensor, "tokens"], ref_logprobs: Float[Tensor, "tokens"]) -> LossOutput:
        """The loss of each token, its coefficient included; of metrics the mean over all drawn tokens is logged."""
        ...


class Auxiliary:
    """A term with its completions, and what the model before training says of them.

    The draw depends on seed, step and mini-batch alone, and the denominator counts the tokens of all ranks: neither
    resuming nor the number of ranks changes the training.
    """

    def __init__(self, term: AuxiliaryTerm, stored: Stored) -> None:
        self.term, self.stored, self.sequences = term, stored, stored.sequences
        self.ref_logprobs = torch.zeros(sum(map(len, stored.sequences.completions)))
        self._sums: dict[int, dict[str, float]] = {}
        """By mini-batch of the step: this rank's tokens, and its sum of each metric."""
        self._work: dict[int, Work] = {}

    def describe(self) -> str:
        """One line for the log."""
        num_prompts = len(set(self.sequences.owners))
        return f"auxiliary term: {len(self.sequences.completions)} stored completions of {num_prompts} prompts"

    @torch.no_grad()
    def score(self, run: Run) -> None:
        """Record log π_ref of every token by the policy, which has not been trained yet; collective.

        Raises:
            ConfigError: the completions were sampled by another model, from other prompts or at another temperature.
        """
        own = range(run.ranks.rank, len(self.sequences.completions), run.ranks.world_size)
        scored = torch.zeros_like(self.ref_logprobs, device=run.device)
        with unsharded_root(run.policy):
            for microbatch in self._microbatches(run, own)[0]:
                scored[microbatch.token_index] = run.policy(microbatch, temperature=run.settings.temperature).logprobs
        self.ref_logprobs = torch.stack(from_all_ranks(scored.cpu())).sum(0).to(run.device)
        parts = self.ref_logprobs.split([len(completion) for completion in self.sequences.completions])
        gaps = [
            abs(float(part.sum()) - total) / len(part) for part, total in zip(parts, self.stored.logprobs, strict=True)
        ]
        if not sum(gaps) / len(gaps) <= MOST_GAP:
            raise ConfigError(
                f"algo.auxiliary: log-probs of its samples differ by {sum(gaps) / len(gaps):.3f} nats a token from the "
                "model's before training: sample that model, with this prompt and temperature and top_p=1"
            )

    def losses(self, run: Run, step: int, minibatch: int) -> list[Callable[[], Float[Tensor, ""]]]:
        """One function a micro-batch, which returns this rank's part of the mean loss over all drawn tokens."""
        num_stored = len(self.sequences.completions)
        seed = sample_seed(run.seed, "auxiliary", step, "", minibatch)
        drawn = random.Random(seed).sample(range(num_stored), min(self.term.completions_per_minibatch, num_stored))
        num_tokens = sum(len(self.sequences.completions[b]) for b in drawn)
        microbatches, num_padding = self._microbatches(run, drawn[run.ranks.rank :: run.ranks.world_size])
        self._work[minibatch] = work_of(microbatches[: len(microbatches) - num_padding])
        self._sums[minibatch] = {"": float(self._work[minibatch].num_rows)}
        return [partial(self._loss, run, part, num_tokens, self._sums[minibatch]) for part in microbatches]

    def _loss(self, run: Run, microbatch: Microbatch, num_tokens: int, sums: dict[str, float]) -> Float[Tensor, ""]:
        head = run.policy.detached_head(run.policy.hidden_states(microbatch), temperature=run.settings.temperature)
        for tokens in head.chunks():
            chunk = microbatch.part(tokens)
            output = self.term(head.statistics(tokens, chunk.targets).logprobs, self.ref_logprobs[chunk.token_index])
            head.add(output.per_token.sum() / num_tokens)
            for name, values in output.metrics.items():
                sums[name] = sums.get(name, 0.0) + float(values.sum())
        return head.total_loss()

    def _microbatches(self, run: Run, completions: Sequence[int]) -> tuple[list[Microbatch], int]:
        budget = run.settings.tokens_per_microbatch
        return equalize_microbatches(self.sequences, completions, budget, run.ranks, run.device)

    def take(self) -> tuple[dict[str, float], Work]:
        """The means of the metrics over all tokens of the step, and this rank's work; then forget both; collective."""
        totals: dict[str, float] = {}
        for sums in (sums for of_rank in from_all_ranks(list(self._sums.values())) for sums in of_rank):
            for name, value in sums.items():
                totals[name] = totals.get(name, 0.0) + value
        work = sum(self._work.values(), Work())
        self._sums, self._work = {}, {}
        num_tokens = totals.pop("", 0.0)
        return {name: total / num_tokens for name, total in totals.items()}, work

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
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.rollout.collector import sample_seed
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import Minibatch, StepPlan
from apo_lightning.types import LossOutput, Prompt, StepOutput

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


class Auxiliary(Part):
    """A term with its completions, and what the model before training says of them.

    The draw depends on seed, step and mini-batch alone, and the denominator counts the tokens of all ranks: neither
    resuming nor the number of ranks changes the training.
    """

    name = "auxiliary"

    def __init__(self, term: AuxiliaryTerm, stored: Stored) -> None:
        self.term, self.stored, self.sequences = term, stored, stored.sequences
        self.ref_logprobs = torch.zeros(sum(map(len, stored.sequences.completions)))
        self._sums: dict[str, float] = {}
        """This rank's sum of each metric over the step, and under the empty name its tokens."""

    def describe(self) -> str:
        """One line for the log."""
        num_prompts = len(set(self.sequences.owners))
        return f"auxiliary term: {len(self.sequences.completions)} stored completions of {num_prompts} prompts"

    @torch.no_grad()
    def begin(self, setup: Setup) -> None:
        """Record log π_ref of every token by the policy, which has not been trained yet; collective.

        Raises:
            ConfigError: the completions were sampled by another model, from other prompts or at another temperature.
        """
        own = range(setup.ranks.rank, len(self.sequences.completions), setup.ranks.world_size)
        scored = torch.zeros_like(self.ref_logprobs, device=setup.device)
        with unsharded_root(setup.policy):
            for microbatch in setup.microbatches(self.sequences, own):
                scored[microbatch.token_index] = setup.policy(
                    microbatch, temperature=setup.settings.temperature
                ).logprobs
        self.ref_logprobs = torch.stack(from_all_ranks(scored.cpu())).sum(0).to(setup.device)
        parts = self.ref_logprobs.split([len(completion) for completion in self.sequences.completions])
        gaps = [
            abs(float(part.sum()) - total) / len(part) for part, total in zip(parts, self.stored.logprobs, strict=True)
        ]
        if not sum(gaps) / len(gaps) <= MOST_GAP:
            raise ConfigError(
                f"algo.auxiliary: log-probs of its samples differ by {sum(gaps) / len(gaps):.3f} nats a token from the "
                "model's before training: sample that model, with this prompt and temperature and top_p=1"
            )

    def terms(self, setup: Setup, plan: StepPlan, minibatch: Minibatch) -> list[Callable[[], Tensor]]:
        """One function a micro-batch, which returns this rank's part of the mean loss over all drawn tokens."""
        if not minibatch.num_tokens:
            return []
        num_stored = len(self.sequences.completions)
        seed = sample_seed(setup.seed, "auxiliary", plan.table.rollouts.step, "", minibatch.number)
        drawn = random.Random(seed).sample(range(num_stored), min(self.term.completions_per_minibatch, num_stored))
        num_tokens = sum(len(self.sequences.completions[b]) for b in drawn)
        microbatches = setup.microbatches(self.sequences, drawn[setup.ranks.rank :: setup.ranks.world_size])
        return [partial(self._loss, setup, part, num_tokens) for part in microbatches]

    def _loss(self, setup: Setup, microbatch: Microbatch, num_tokens: int) -> Float[Tensor, ""]:
        hidden = setup.policy.hidden_states(microbatch)
        head = setup.policy.detached_head(hidden, temperature=setup.settings.temperature)
        for tokens in head.chunks():
            chunk = microbatch.part(tokens)
            output = self.term(head.statistics(tokens, chunk.targets).logprobs, self.ref_logprobs[chunk.token_index])
            head.add(output.per_token.sum() / num_tokens)
            for name, values in {"": torch.ones_like(output.per_token), **output.metrics}.items():
                self._sums[name] = self._sums.get(name, 0.0) + float(values.sum())
        return head.total_loss()

    def metrics(self, setup: Setup, step: StepOutput) -> dict[str, float]:
        """The means of the term's metrics over all drawn tokens of the step; collective."""
        parts, self._sums = from_all_ranks(self._sums), {}
        names = dict.fromkeys(name for sums in parts for name in sums)
        totals = {name: sum(sums.get(name, 0.0) for sums in parts) for name in names}
        num_tokens = totals.pop("", 0.0)
        return {name: total / num_tokens for name, total in totals.items()}

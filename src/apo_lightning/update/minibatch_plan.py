"""The mini-batches of a step before any is run: their completions in micro-batches, and every token's weight."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from apo_lightning.distributed.ranks import Ranks
from apo_lightning.losses import PolicyLoss
from apo_lightning.losses.aggregation import token_weights
from apo_lightning.model.packing import Microbatch, padding_microbatch
from apo_lightning.update.settings import StepSettings
from apo_lightning.update.table import StepTable


@runtime_checkable
class Divisible(Protocol):
    """Completions that can be divided into micro-batches, such as a step's table."""

    @property
    def device(self) -> torch.device:
        """Where micro-batches lie."""
        ...

    def microbatches(
        self, completions: Sequence[int], tokens_per_microbatch: int, *, at_least: int = 1
    ) -> list[Microbatch]:
        """The given completions under a token budget, in so many micro-batches or more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """One optimizer step: its micro-batches, and the weight of every token in its scalar loss."""

    number: int
    """0 for the first of the step."""
    completions: Sequence[int]
    """Those in this rank's table, whether the update runs them or not."""
    microbatches: Sequence[Microbatch]
    """The completions that the update runs, and then empty forwards so that all ranks run equally many."""
    weights: Float[Tensor, "tokens"]
    """[T] over the whole step, with kept tokens that are not run in the denominator; 0 outside this mini-batch and on
    dropped completions."""
    num_padding: int
    """How many of the last micro-batches are there for the other ranks' sake and weigh nothing."""
    num_tokens: int
    """Kept tokens, over all ranks, run or not; 0: no optimizer step."""

    @property
    def active_microbatches(self) -> Sequence[Microbatch]:
        """The micro-batches that hold completions to learn from."""
        return self.microbatches[: len(self.microbatches) - self.num_padding]

    @property
    def padding_microbatches(self) -> Sequence[Microbatch]:
        """Run because other ranks have more; their loss is 0."""
        return self.microbatches[len(self.microbatches) - self.num_padding :]


def equalize_microbatches(
    table: Divisible, completions: Sequence[int], settings: StepSettings, ranks: Ranks
) -> tuple[list[Microbatch], int]:
    """Micro-batches of these completions, and how many were added at the end so that all ranks run equally many.

    Under sharding every forward is a collective: a rank with fewer micro-batches than the others would leave them
    waiting for ever. Such a rank cuts its completions into as many, smaller ones; where it has too few completions,
    the added ones have no token to read.
    """
    budget = settings.tokens_per_microbatch
    microbatches = table.microbatches(completions, budget)
    wanted = int(ranks.max(len(microbatches)))
    if len(microbatches) < wanted:
        microbatches = table.microbatches(completions, budget, at_least=wanted)
    num_padding = wanted - len(microbatches)
    return microbatches + [padding_microbatch(table.device)] * num_padding, num_padding


def updated_tokens(table: StepTable, loss: PolicyLoss) -> Bool[Tensor, "tokens"]:
    """Tokens of the completions that the update runs: kept, and with a token whose loss can have a gradient."""
    moving = loss.gradient_mask(table.advantages, table.is_correct) & table.kept_tokens
    return torch.isin(table.sequence_ids, table.sequence_ids[moving])


def plan_minibatches(
    table: StepTable, updated: Bool[Tensor, "tokens"], settings: StepSettings, ranks: Ranks
) -> list[Minibatch]:
    """Mini-batches by prompt in sampling order, over kept completions, with one weight a token.

    Counts are taken over all ranks and over all that is kept, so neither the split into micro-batches nor the number
    of ranks nor what is spared enters a weight.

    Args:
        table: of the step.
        updated: tokens of the completions that are run, from `updated_tokens`.
        settings: sizes of a step.
        ranks: all of them run equally many micro-batches.
    """
    prompts_per_rank = settings.prompts_per_minibatch // ranks.world_size
    running = set(table.completions_with(updated))
    return [
        _plan_one(table, number, table.of_minibatch(number, prompts_per_rank), running, settings, ranks)
        for number in range(settings.minibatches_per_step)
    ]


def _plan_one(
    table: StepTable, number: int, completions: list[int], running: set[int], settings: StepSettings, ranks: Ranks
) -> Minibatch:
    kept = torch.zeros_like(table.keep)
    kept[completions] = table.keep[completions]
    num_tokens = int(ranks.sum(int(table.lengths[kept].sum())))
    num_sequences = int(ranks.sum(int(kept.sum())))
    running_here = [b for b in completions if b in running]
    microbatches, num_padding = equalize_microbatches(table, running_here, settings, ranks)
    weights = token_weights(
        table.lengths,
        kept,
        settings.aggregation,
        max_completion_tokens=settings.max_completion_tokens,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
    )
    return Minibatch(
        number=number,
        completions=completions,
        microbatches=microbatches,
        weights=weights.to(table.device),
        num_padding=num_padding,
        num_tokens=num_tokens,
    )

"""What one step runs: its mini-batches, their completions in micro-batches, and the weight of every token."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from apo_lightning.distributed.gathering import Ranks
from apo_lightning.model.packing import Microbatch, PackedSequences, padding_microbatch
from apo_lightning.step.settings import StepSettings
from apo_lightning.step.table import StepTable
from apo_lightning.types import Needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch:
    """One optimizer step: its micro-batches, and the weight of every token in its scalar loss."""

    number: int
    """0 for the first of the step."""
    completions: Sequence[int]
    """The completions in this rank's table, whether the update runs them or not."""
    microbatches: Sequence[Microbatch]
    """The completions that the update runs, and then padding so that all ranks run equally many; its loss is 0."""
    weights: Float[Tensor, "tokens"]
    """[T] over the whole step, with kept tokens that are not run in the denominator; 0 outside this mini-batch and on
    dropped completions."""
    num_padding: int
    """How many of the last micro-batches are padding: other ranks have more."""
    num_tokens: int
    """Kept tokens, over all ranks, run or not; 0: no optimizer step."""

    @property
    def is_first(self) -> bool:
        """True before the first optimizer step since the policy sampled: π_old is π itself."""
        return self.number == 0

    @property
    def active_microbatches(self) -> Sequence[Microbatch]:
        """The micro-batches that hold completions to learn from; the others are padding."""
        return self.microbatches[: len(self.microbatches) - self.num_padding]


def equalize_microbatches(
    sequences: PackedSequences,
    completions: Sequence[int],
    tokens_per_microbatch: int,
    ranks: Ranks,
    device: torch.device,
) -> tuple[list[Microbatch], int]:
    """Micro-batches of these completions, and how many of the last are padding, so that all ranks run equally many.

    Under sharding every forward is a collective: the other ranks would wait for ever for a rank with fewer
    micro-batches. Such a rank cuts its completions into as many, smaller ones; where it has too few completions, it
    adds padding, which has no token to read.
    """
    microbatches = sequences.microbatches(completions, tokens_per_microbatch, device)
    wanted = int(ranks.max(len(microbatches)))
    if len(microbatches) < wanted:
        microbatches = sequences.microbatches(completions, tokens_per_microbatch, device, at_least=wanted)
    num_padding = wanted - len(microbatches)
    return microbatches + [padding_microbatch(device)] * num_padding, num_padding


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """Which completions a step runs, and in what order; made once the advantages are known."""

    table: StepTable
    minibatches: Sequence[Minibatch]
    reference_mask: Bool[Tensor, "tokens"]
    """Tokens whose reference rows the loss may use; only those of completions that the update runs."""
    diagnostic_needs: Needs
    """What this step's diagnostics read beyond the loss."""
    unscored: Sequence[Microbatch]
    """What the sampling policy is run on before the update."""


def plan_step(
    table: StepTable, loss_needs: Needs, needs: Needs, diagnostic_needs: Needs, settings: StepSettings, ranks: Ranks
) -> StepPlan:
    """Plan a step, once the advantages of its tokens are known; collective. `needs` are of the loss and the parts."""
    updated = updated_tokens(table, needs)
    minibatches = plan_minibatches(table, updated, settings, ranks)
    return StepPlan(
        table=table,
        minibatches=minibatches,
        reference_mask=loss_needs.reference_mask(table.advantages, table.is_correct) & updated,
        diagnostic_needs=diagnostic_needs,
        unscored=_unscored(table, minibatches, settings, ranks, everything=diagnostic_needs != Needs()),
    )


def needs_of_diagnostics(callbacks: Iterable[Any], step: int) -> Needs:
    """What the diagnostics that are due at this step read of all tokens beyond the loss."""
    needs = Needs()
    for callback in callbacks:
        if hasattr(callback, "needs") and callback.is_due(step):
            needs |= replace(callback.needs, reference_model=False)
    return needs


def _unscored(
    table: StepTable, minibatches: Sequence[Minibatch], settings: StepSettings, ranks: Ranks, *, everything: bool
) -> list[Microbatch]:
    """What the sampling policy must be run on before the update.

    The first mini-batch of the update is run by the sampling policy itself: there π_old is the policy's own log-prob,
    detached, and costs no forward. A diagnostic reads `everything`, also what the update does not run.
    """
    if not everything:
        later = minibatches[1:] if settings.old_logprobs == "trainer" else []
        return [microbatch for minibatch in later for microbatch in minibatch.microbatches]
    microbatches = []
    budget, sequences, starts = settings.tokens_per_microbatch, table.sequences, table.sequences.starts
    for minibatch in minibatches:
        run = {index for part in minibatch.active_microbatches for index in part.token_index.tolist()}
        # As the update splits them: π_old must be the same to the last bit with and without a diagnostic.
        skipped = [b for b in minibatch.completions if starts[b] not in run]
        microbatches += [
            *equalize_microbatches(sequences, skipped, budget, ranks, table.device)[0],
            *minibatch.microbatches,
        ]
    return microbatches


def updated_tokens(table: StepTable, needs: Needs) -> Bool[Tensor, "tokens"]:
    """Tokens of the completions that the update runs: kept, and with a token that can have a gradient."""
    moving = needs.gradient_mask(table.advantages, table.is_correct) & table.kept_tokens
    return torch.isin(table.sequence_ids, table.sequence_ids[moving])


def plan_minibatches(
    table: StepTable, updated: Bool[Tensor, "tokens"], settings: StepSettings, ranks: Ranks
) -> list[Minibatch]:
    """Mini-batches by prompt in sampling order, over kept completions, with one weight a token.

    Counts are taken over all ranks and over all kept completions, so a weight depends neither on the split into
    micro-batches nor on the number of ranks nor on which completions are run: those of the `updated_tokens`.
    """
    prompts_per_rank = settings.prompts_per_minibatch // ranks.world_size
    running = set(table.completions_with(updated))
    result = []
    for number in range(settings.minibatches_per_step):
        completions = table.of_minibatch(number, prompts_per_rank)
        running_here = [b for b in completions if b in running]
        weights, num_tokens = _weights(table, completions, settings, ranks)
        microbatches, num_padding = equalize_microbatches(
            table.sequences, running_here, settings.tokens_per_microbatch, ranks, table.device
        )
        result.append(
            Minibatch(
                number=number,
                completions=completions,
                microbatches=microbatches,
                weights=weights,
                num_padding=num_padding,
                num_tokens=num_tokens,
            )
        )
    return result


def _weights(
    table: StepTable, completions: list[int], settings: StepSettings, ranks: Ranks
) -> tuple[Float[Tensor, "tokens"], int]:
    """The weights of a mini-batch, and its kept tokens over all ranks."""
    kept = torch.zeros_like(table.keep)
    kept[completions] = table.keep[completions]
    num_tokens = int(ranks.sum(int(table.lengths[kept].sum())))
    num_sequences = int(ranks.sum(int(kept.sum())))
    weights = token_weights(
        table.lengths,
        kept,
        settings.aggregation,
        max_completion_tokens=settings.max_completion_tokens,
        num_tokens=num_tokens,
        num_sequences=num_sequences,
    )
    return weights.to(table.device), num_tokens


def token_weights(
    lengths: Int[Tensor, "sequences"],
    keep: Bool[Tensor, "sequences"],
    mode: str,
    *,
    max_completion_tokens: int,
    num_tokens: int | None = None,
    num_sequences: int | None = None,
) -> Float[Tensor, "tokens"]:
    """The weight of every token in the scalar loss of its mini-batch, Σ_t w_t · loss_t.

        token_mean                      w = 1/N_tokens
        sequence_mean_token_mean        w = 1/(N_sequences · length)
        sequence_mean_token_sum_norm    w = 1/(N_sequences · max_completion_tokens)

    The counts are those of the whole mini-batch over all ranks, so the result depends neither on the split into
    micro-batches nor on the packing nor on the number of ranks.

    Source: `token_mean`, Yu et al. 2025 (DAPO), Eq. 8, and the APO paper; `sequence_mean_token_mean`, Shao et al. 2024,
    Eq. 3; `sequence_mean_token_sum_norm`, Liu et al. 2025 (Dr. GRPO).

    Args:
        lengths: response tokens of each completion.
        keep: False: weight 0, and excluded from every denominator.
        mode: one of `settings.AGGREGATIONS`.
        max_completion_tokens: the longest a completion may be; Dr. GRPO's constant.
        num_tokens: kept tokens of the mini-batch over all ranks; None: those here.
        num_sequences: kept completions of the mini-batch over all ranks; None: those here.

    Returns:
        One weight per token, completion after completion.

    Example:
        >>> token_weights(torch.tensor([1, 3]), torch.tensor([True, True]), "token_mean", max_completion_tokens=8)
        tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """
    num_tokens = int(lengths[keep].sum()) if num_tokens is None else num_tokens
    num_sequences = int(keep.sum()) if num_sequences is None else num_sequences
    denominators = {
        "token_mean": torch.full_like(lengths, num_tokens),
        "sequence_mean_token_mean": num_sequences * lengths,
        "sequence_mean_token_sum_norm": torch.full_like(lengths, num_sequences * max_completion_tokens),
    }
    weights = torch.where(keep, 1 / denominators[mode], 0.0)
    return weights.repeat_interleave(lengths)

"""The gradient of one mini-batch: from hidden states to the loss and back, one micro-batch after the other."""

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.distributed.ranks import clip_grad_norm, zero_gradient
from apo_lightning.distributed.root_params import grad_sync, unsharded_root
from apo_lightning.logprobs.detached import DetachedHead
from apo_lightning.losses.importance import SEQUENCE_MODES, importance_weights
from apo_lightning.losses.value_loss import clipped_value_loss
from apo_lightning.model.critic import Critic
from apo_lightning.model.packing import Microbatch
from apo_lightning.types import LossOutput, TokenStatistics
from apo_lightning.update.auxiliary import Auxiliary
from apo_lightning.update.minibatch_plan import Minibatch
from apo_lightning.update.run import Run
from apo_lightning.update.step_plan import StepPlan
from apo_lightning.update.table import StepTable
from apo_lightning.update.update_record import MinibatchGradient, TokenLosses, total_loss


def minibatch_gradient(
    run: Run, plan: StepPlan, minibatch: Minibatch, auxiliary: Auxiliary | None = None
) -> MinibatchGradient:
    """The gradient of Σ_t w_t · loss_t over the micro-batches of all ranks, left in the parameters and clipped.

    That of an auxiliary term is added where there is one, unless the mini-batch has no kept token.
    """
    compared = [run.reference.policy] if run.loss.needs.full_kl and run.reference is not None else []
    trained = [run.policy, *([] if run.critic is None else run.critic.copies)]
    for policy in trained:
        policy.zero_grad(set_to_none=True)
    losses: list[TokenLosses] = []
    with ExitStack() as passes:
        for policy in trained + compared:
            passes.enter_context(unsharded_root(policy))
        parts = [partial(microbatch_loss, run, plan, minibatch, part, losses) for part in minibatch.microbatches]
        if auxiliary is not None and minibatch.num_tokens:
            parts += auxiliary.losses(run, plan.table.rollouts.step, minibatch.number)
        for number, part in enumerate(parts, start=1):
            with grad_sync(trained, run.trainer.strategy, enabled=number == len(parts)):
                # Strategies average over ranks; the weights already count the tokens of all ranks.
                run.manual_backward(part() * run.ranks.world_size)
    for policy in [] if parts else trained:
        zero_gradient(policy)
    norm = clip_grad_norm(run.policy.model.parameters(), run.settings.gradient_clip_norm)
    if run.critic is not None:
        critic_norm = clip_grad_norm(run.critic.parameters.values(), run.settings.gradient_clip_norm)
        norm = norm if math.isfinite(critic_norm) else critic_norm
    gradient = MinibatchGradient(losses=losses, loss=total_loss(losses), norm=norm)
    norm = run.nonfinite.check_step(gradient, minibatch, plan.table, run.ranks, run.trainer.default_root_dir)
    return replace(gradient, norm=norm)


def microbatch_loss(
    run: Run, plan: StepPlan, minibatch: Minibatch, microbatch: Microbatch, losses: list[TokenLosses]
) -> Float[Tensor, ""]:
    """Σ_t w_t · loss_t of one micro-batch, and of the critic's loss where there is one.

    The gradient of the policy's part is already known at the hidden states and the head. One record for each chunk of
    tokens is appended to `losses`; the first mini-batch also writes the sampling policy's statistics into the table.
    """
    table, needs = plan.table, run.loss.needs
    reference = run.reference if needs.full_kl else None
    compared = () if reference is None else (reference.hidden_states(microbatch), reference.head_weight)
    hidden = run.policy.hidden_states(microbatch)
    of_sequences = _sequence_values(run, plan, minibatch, microbatch, hidden) if needs.sequence_values else None
    values = None if run.critic is None else critic_loss(run.critic, table, microbatch, hidden)
    per_sequence = run.settings.importance in SEQUENCE_MODES
    if per_sequence and minibatch.is_first:
        table.record_policy(microbatch, _head_statistics(run, microbatch, hidden))
    # Here and not chunk by chunk: the micro-batch holds whole completions.
    importance = _importance(run, table, microbatch) if per_sequence else {}
    top_ids = _top_ids(run, microbatch, hidden) if needs.candidate_size else None
    head = run.policy.detached_head(hidden, temperature=run.settings.temperature)
    for tokens in head.chunks():
        chunk = microbatch.part(tokens)
        anchor_ids = table.anchor_ids(chunk, needs.anchor_size, plan.reference_mask)
        own_ids = None if top_ids is None else top_ids[tokens]
        statistics, own_logprobs = _statistics(head, tokens, chunk, anchor_ids, own_ids, compared)
        if minibatch.is_first:
            table.record_policy(chunk, statistics)
        weighed = _part(importance, tokens) if per_sequence else _importance(run, table, chunk)
        inputs = table.loss_inputs(
            chunk,
            statistics,
            old_logprobs=_old_logprobs(run, plan, minibatch),
            needs=needs,
            reference_mask=plan.reference_mask,
            importance_weights=weighed.get("importance_weight"),
        )
        inputs = replace(
            inputs,
            marks=None if plan.marks is None else plan.marks[chunk.token_index],
            sequence_values=None if of_sequences is None else of_sequences[tokens],
            candidate_ids=own_ids,
            candidate_logprobs=own_logprobs,
        )
        output = run.loss(inputs)
        weighted_sum = (minibatch.weights[chunk.token_index] * output.per_token).sum()
        head.add(weighted_sum)
        losses.append(
            TokenLosses(
                token_index=chunk.token_index,
                logprobs=inputs.logprobs.detach().clone(),
                old_logprobs=inputs.old_logprobs,
                per_token=output.per_token.detach(),
                metrics={**output.metrics, **weighed, **({} if values is None else _part(values.metrics, tokens))},
                weighted_sum=weighted_sum.detach(),
            )
        )
    if run.critic is None or values is None:
        return head.total_loss()
    weights = run.critic.coefficient * minibatch.weights[microbatch.token_index]
    return head.total_loss() + (weights * values.per_token).sum()


def critic_loss(
    critic: Critic, table: StepTable, microbatch: Microbatch, policy_hidden: Float[Tensor, "tokens hidden"]
) -> LossOutput:
    """The value loss of each token of a micro-batch."""
    assert table.values is not None
    assert table.returns is not None
    index = microbatch.token_index
    values = critic.values(microbatch, policy_hidden)
    return clipped_value_loss(values, table.values[index], table.returns[index], critic.settings.value_clip)


def _part(metrics: Mapping[str, Tensor], tokens: slice) -> dict[str, Tensor]:
    """The metrics of some tokens."""
    return {name: values[tokens] for name, values in metrics.items()}


def _importance(run: Run, table: StepTable, part: Microbatch) -> dict[str, Tensor]:
    """The importance weights of some tokens and where the bounds act, as metrics; empty without a correction."""
    settings, index = run.settings, part.token_index
    if settings.importance is None:
        return {}
    columns = table.old_logprobs[index], table.rollout_logprobs[index], table.sequence_ids[index]
    weights, is_outside = importance_weights(*columns, settings.importance, settings.importance_bounds)
    return {"importance_weight": weights, "importance_outside_fraction": is_outside.float()}


@torch.no_grad()
def _head_statistics(run: Run, microbatch: Microbatch, hidden: Float[Tensor, "tokens hidden"]) -> TokenStatistics:
    """Statistics of a whole micro-batch: one more forward of the head."""
    return run.policy.read_head(hidden.detach(), microbatch.targets, temperature=run.settings.temperature)


def _statistics(
    head: DetachedHead,
    tokens: slice,
    chunk: Microbatch,
    anchor_ids: Tensor | None,
    own_ids: Tensor | None,
    compared: Sequence[Tensor],
) -> tuple[TokenStatistics, Tensor | None]:
    """Statistics of a chunk, and apart from them the log-probs at the policy's own top K."""
    asked = [ids for ids in (own_ids, anchor_ids) if ids is not None]
    statistics = head.statistics(tokens, chunk.targets, torch.cat(asked, dim=1) if asked else None, *compared)
    if own_ids is None or statistics.anchor_logprobs is None:
        return statistics, None
    own, others = statistics.anchor_logprobs.tensor_split([own_ids.shape[1]], dim=1)
    return replace(statistics, anchor_logprobs=None if anchor_ids is None else others), own


@torch.no_grad()
def _top_ids(run: Run, microbatch: Microbatch, hidden: Tensor) -> Tensor | None:
    """[T, K] the policy's own most likely tokens."""
    k, temperature = run.loss.needs.candidate_size, run.settings.temperature
    return run.policy.read_top(hidden.detach(), microbatch.targets, k, temperature=temperature).anchor_ids


@torch.no_grad()
def _sequence_values(
    run: Run, plan: StepPlan, minibatch: Minibatch, microbatch: Microbatch, hidden: Float[Tensor, "tokens hidden"]
) -> Float[Tensor, "tokens"]:
    """What the loss's `sequence_values` says of each token; a micro-batch holds whole completions."""
    index, old = microbatch.token_index, _old_logprobs(run, plan, minibatch)
    log_ratio = entropy = torch.zeros(len(index), device=hidden.device)
    if old is not None or run.loss.needs.entropy:
        statistics = _head_statistics(run, microbatch, hidden)
        entropy = statistics.entropy
        log_ratio = log_ratio if old is None else statistics.logprobs - old[index]
    return run.loss.sequence_values(log_ratio, entropy, plan.table.advantages[index], plan.table.sequence_ids[index])


def _old_logprobs(run: Run, plan: StepPlan, minibatch: Minibatch) -> Float[Tensor, "tokens"] | None:
    """log π_old [T]; None: the policy itself, which has not moved since it sampled."""
    if run.settings.old_logprobs == "rollout":
        return plan.table.rollout_logprobs
    return None if minibatch.is_first else plan.table.old_logprobs

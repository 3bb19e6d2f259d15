"""The passes of a step: those of reference and sampling policy without a gradient, and those of the update."""

import math
from collections.abc import Callable
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.distributed.root_params import clip_grad_norm, grad_sync, unsharded_root, zero_gradient
from apo_lightning.logprobs.statistics import DetachedHead
from apo_lightning.model.packing import Microbatch
from apo_lightning.step.part import Setup
from apo_lightning.step.plan import Minibatch, StepPlan
from apo_lightning.step.update_record import MinibatchGradient, TokenLosses, total_loss
from apo_lightning.types import Anchor, LossInputs, TokenStatistics, detached


def score_reference(setup: Setup, plan: StepPlan) -> None:
    """Record log π_ref and anchors in the plan's table, on the tokens where the loss or a diagnostic reads them."""
    table, diagnostics, loss_needs = plan.table, plan.diagnostic_needs, setup.loss.needs
    needs = loss_needs | diagnostics
    if not needs.reference_statistics:
        return
    assert setup.reference is not None
    passes = []
    if diagnostics.reference_statistics:
        passes.append((torch.ones_like(plan.reference_mask), diagnostics.anchor_size))
    # Again after a diagnostic's pass: what the loss reads must be the same to the last bit, and that depends on which
    # completions are run together.
    if loss_needs.reference_statistics:
        passes.append((plan.reference_mask, loss_needs.anchor_size))
    table.prepare_reference(needs.anchor_size)
    with unsharded_root(setup.reference.policy):
        for wanted, anchor_size in passes:
            for microbatch in setup.microbatches(table.sequences, table.completions_with(wanted)):
                chunk = microbatch.part(wanted[microbatch.token_index])
                statistics = setup.reference.score(chunk, anchor_size, temperature=setup.settings.temperature)
                table.record_reference(chunk, statistics)


@torch.no_grad()
def score_policy(setup: Setup, plan: StepPlan) -> None:
    """Record what the sampling policy says of `plan.unscored`, and of the anchors that a diagnostic reads."""
    table = plan.table
    with unsharded_root(setup.policy):
        for microbatch in plan.unscored:
            anchor_ids = table.anchor_ids(microbatch, plan.diagnostic_needs.anchor_size)
            statistics = setup.policy(microbatch, anchor_ids, temperature=setup.settings.temperature)
            table.record_policy(microbatch, statistics)


def minibatch_gradient(
    setup: Setup, plan: StepPlan, minibatch: Minibatch, backward: Callable[[Tensor], None]
) -> MinibatchGradient:
    """The gradient of Σ_t w_t · loss_t over the micro-batches of all ranks, left in the parameters and clipped.

    `backward` takes the gradient of one micro-batch's loss as strategy and precision want it.
    """
    compared = [setup.reference.policy] if setup.loss.needs.full_kl and setup.reference is not None else []
    trained = [setup.policy, *(model for part in setup.parts for model in part.trained)]
    own = setup.own_parameters
    for model in trained:
        model.zero_grad(set_to_none=True)
    for parameter in own:
        parameter.grad = None
    losses: list[TokenLosses] = []
    with ExitStack() as passes:
        for model in trained + compared:
            passes.enter_context(unsharded_root(model))
        for number, microbatch in enumerate(minibatch.microbatches, start=1):
            is_last = number == len(minibatch.microbatches)
            with grad_sync(trained, setup.ranks.trainer.strategy, enabled=is_last):
                # Strategies average over ranks; the weights already count the tokens of all ranks.
                backward(microbatch_loss(setup, plan, minibatch, microbatch, losses) * setup.ranks.world_size)
    if not minibatch.microbatches:
        for model in trained:
            zero_gradient(model)
    setup.ranks.reduce_gradients(own)
    norm = clip_grad_norm(setup.policy.model.parameters(), setup.settings.gradient_clip_norm)
    others = [part.clip_gradient(setup.settings.gradient_clip_norm) for part in setup.parts]
    norm = norm if all(map(math.isfinite, others)) else math.nan
    loss = total_loss(losses)
    norm = setup.nonfinite.checked_norm(norm, loss, minibatch, plan.table.rollouts.step, setup.ranks)
    return MinibatchGradient(losses=losses, loss=loss, norm=norm)


def microbatch_loss(
    setup: Setup, plan: StepPlan, minibatch: Minibatch, microbatch: Microbatch, losses: list[TokenLosses]
) -> Float[Tensor, ""]:
    """Σ_t w_t · loss_t of one micro-batch; one record for each chunk of tokens is appended to `losses`.

    The gradient of the policy's loss is already known at the hidden states and the head.
    """
    hidden = setup.policy.hidden_states(microbatch)
    head = setup.policy.detached_head(hidden, temperature=setup.settings.temperature)
    reader = LossReader(setup, plan, minibatch, microbatch, hidden)
    weights = minibatch.weights[microbatch.token_index]
    for tokens in head.chunks():
        output = setup.loss(reader.read(head, tokens))
        weighted_sum = (weights[tokens] * output.per_token).sum()
        head.add(weighted_sum)
        losses.append(TokenLosses(microbatch.token_index[tokens], output.metrics, weighted_sum.detach()))
    total = head.total_loss()
    for output in (part.token_loss(setup, plan, microbatch, hidden) for part in setup.parts):
        if output is not None:
            total = total + (weights * output.per_token).sum()
            # train/loss is the policy's alone.
            losses.append(TokenLosses(microbatch.token_index, output.metrics, total.new_zeros(())))
    return total


class LossReader:
    """Gives the loss what its `needs` name, on the tokens that they name, and no more.

    A callback may read more of the reference than the loss does; if the loss saw that too, a diagnostic would steer the
    training. The first mini-batch of a step also writes the sampling policy's statistics into the table.

    Args:
        setup: of the run.
        plan: of the step.
        minibatch: the optimizer step.
        microbatch: whole completions.
        hidden: the policy's last hidden states there.
    """

    def __init__(
        self,
        setup: Setup,
        plan: StepPlan,
        minibatch: Minibatch,
        microbatch: Microbatch,
        hidden: Float[Tensor, "tokens hidden"],
    ) -> None:
        self.needs = setup.loss.needs
        self.plan, self.table = plan, plan.table
        self.microbatch = microbatch
        self.records = minibatch.is_first
        self.old_logprobs = None if minibatch.is_first else self.table.old_logprobs
        if setup.settings.old_logprobs == "rollout":
            self.old_logprobs = self.table.rollout_logprobs
        self.compared: tuple[Tensor, ...] = ()
        if self.needs.full_kl:
            assert setup.reference is not None
            self.compared = setup.reference.hidden_states(microbatch), setup.reference.head_weight
        targets, temperature = microbatch.targets, setup.settings.temperature
        self.columns = {name: self.table.columns[name][microbatch.token_index] for name in self.needs.columns}
        if self.needs.completions:
            with torch.no_grad():
                statistics = setup.policy.read_head(hidden.detach(), targets, temperature=temperature)
                whole = detached(self._inputs(slice(None), microbatch, statistics))
                self.columns |= setup.loss.completion_columns(whole)

    def read(self, head: DetachedHead, tokens: slice) -> LossInputs:
        """The inputs of one chunk of the micro-batch's tokens."""
        chunk = self.microbatch.part(tokens)
        anchor_ids = self.table.anchor_ids(chunk, self.needs.anchor_size, self.plan.reference_mask)
        statistics = head.statistics(tokens, chunk.targets, anchor_ids, *self.compared)
        if self.records:
            self.table.record_policy(chunk, statistics)
        return self._inputs(tokens, chunk, statistics)

    def _inputs(self, tokens: slice, chunk: Microbatch, statistics: TokenStatistics) -> LossInputs:
        index, table = chunk.token_index, self.table
        wanted = self.plan.reference_mask[index]
        ref_logprobs = anchor = None
        if self.needs.ref_logprobs:
            assert table.ref_logprobs is not None
            ref_logprobs = torch.where(wanted, table.ref_logprobs[index], 0.0)
        if statistics.anchor_logprobs is not None:
            assert table.anchor is not None
            k = self.needs.anchor_size
            anchor = Anchor(
                token_ids=table.anchor.token_ids[index, :k].masked_fill(~wanted[:, None], -1),
                ref_logprobs=table.anchor.ref_logprobs[index, :k].masked_fill(~wanted[:, None], -torch.inf),
                logprobs=statistics.anchor_logprobs,
            )
        old = statistics.logprobs.detach() if self.old_logprobs is None else self.old_logprobs[index]
        return LossInputs(
            token_ids=chunk.targets,
            sequence_ids=table.sequence_ids[index],
            logprobs=statistics.logprobs,
            old_logprobs=old,
            rollout_logprobs=table.rollout_logprobs[index],
            advantages=table.advantages[index],
            is_correct=table.is_correct[index],
            ref_logprobs=ref_logprobs,
            anchor=anchor,
            entropy=statistics.entropy if self.needs.entropy else None,
            full_kl=None if statistics.full_kl is None else torch.where(wanted, statistics.full_kl, 0.0),
            columns={name: values[tokens] for name, values in self.columns.items()},
        )

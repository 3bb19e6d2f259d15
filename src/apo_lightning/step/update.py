"""The gradient of one mini-batch: from hidden states to the loss and back, one micro-batch after the other."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from apo_lightning.distributed.ranks import clip_grad_norm, zero_gradient
from apo_lightning.distributed.root_params import grad_sync, unsharded_root
from apo_lightning.model.packing import Microbatch
from apo_lightning.step.loss_inputs import LossReader
from apo_lightning.step.part import Setup
from apo_lightning.step.plan import Minibatch, StepPlan
from apo_lightning.step.update_record import MinibatchGradient, TokenLosses, total_loss


def minibatch_gradient(
    setup: Setup, plan: StepPlan, minibatch: Minibatch, backward: Callable[[Tensor], None]
) -> MinibatchGradient:
    """The gradient of Σ_t w_t · loss_t over the micro-batches of all ranks, left in the parameters and clipped.

    `backward` takes the gradient of one micro-batch's loss as strategy and precision want it.
    """
    compared = [setup.reference.policy] if setup.loss.needs.full_kl and setup.reference is not None else []
    trained = [setup.policy, *(model for part in setup.parts for model in part.trained)]
    for model in trained:
        model.zero_grad(set_to_none=True)
    losses: list[TokenLosses] = []
    with ExitStack() as passes:
        for model in trained + compared:
            passes.enter_context(unsharded_root(model))
        terms = [partial(microbatch_loss, setup, plan, minibatch, part, losses) for part in minibatch.microbatches]
        terms += [term for part in setup.parts for term in part.terms(setup, plan, minibatch)]
        for number, term in enumerate(terms, start=1):
            with grad_sync(trained, setup.ranks.trainer.strategy, enabled=number == len(terms)):
                # Strategies average over ranks; the weights already count the tokens of all ranks.
                backward(term() * setup.ranks.world_size)
    for model in [] if terms else trained:
        zero_gradient(model)
    norm = clip_grad_norm(setup.policy.model.parameters(), setup.settings.gradient_clip_norm)
    others = [part.clip_gradient(setup.settings.gradient_clip_norm) for part in setup.parts]
    norm = next((other for other in others if not math.isfinite(other)), norm)
    gradient = MinibatchGradient(losses=losses, loss=total_loss(losses), norm=norm)
    norm = setup.nonfinite.check_step(gradient, minibatch, plan.table.rollouts.step, setup.ranks)
    return replace(gradient, norm=norm)


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
        losses.append(TokenLosses.of(microbatch.token_index[tokens], output, weighted_sum))
    total = head.total_loss()
    for output in (part.token_loss(setup, plan, microbatch, hidden) for part in setup.parts):
        if output is not None:
            total = total + (weights * output.per_token).sum()
            losses.append(TokenLosses.of(microbatch.token_index, output, torch.zeros_like(total)))
    return total

"""Parts as a user writes them."""

import os
import signal

import torch
from torch import nn

from apo_lightning.step.part import Part
from apo_lightning.types import LossOutput, Needs


class LengthHead(Part):
    """A linear layer of its own on the policy's hidden states, which learns the length of the completion."""

    name = "length_head"
    needs = Needs(gradient_on="all")

    def __init__(self):
        self.head = nn.Linear(64, 1)
        nn.init.constant_(self.head.weight, 0.01 * int(os.environ.get("RANK", "0")))  # every rank its own
        self.is_new_minibatch = True

    def configure(self):
        self.optimizer = torch.optim.SGD(self.head.parameters(), lr=1e-3)

    @property
    def optimizers(self):
        return {"length_head": (dict(self.head.named_parameters()), self.optimizer)}

    @property
    def tensors(self):
        return {f"length_head.{name}": parameter.detach() for name, parameter in self.head.named_parameters()}

    def token_loss(self, setup, plan, microbatch, hidden):
        if self.is_new_minibatch:
            assert self.head.weight.grad is None, "the gradient of another mini-batch"
        self.is_new_minibatch = False
        lengths = plan.table.lengths[plan.table.sequence_ids[microbatch.token_index]]
        error = self.head(hidden.detach())[:, 0] - lengths
        return LossOutput(per_token=error.square())

    def before_optimizer_step(self, setup, plan, minibatch, gradient):
        self.is_new_minibatch = True

    def optimizer_step(self, setup, *, policy_moved):
        self.optimizer.step()

    def metrics(self, setup, step):
        return {"length_head/norm": self.head.weight.norm().item(), "length_head/bias": self.head.bias.item()}


class CountsSteps(Part):
    """How often it was given rollouts."""

    name = "counts_steps"

    def __init__(self):
        self.count = 0

    def sampled(self, setup, batch, rollouts):
        self.count += 1
        return rollouts

    def metrics(self, setup, step):
        return {"counts_steps/count": self.count}

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class StopsOneRank(Part):
    """Where STOPS is set, asks rank 1 to stop while it samples; counts tokens over all ranks."""

    name = "stops_one_rank"

    def begin(self, setup):
        collector = setup.sample.__self__.collector
        collect = collector.collect

        def stopped(*args, **kwargs):
            if setup.ranks.rank == 1 and kwargs["step"] == 2 and "STOPS" in os.environ:
                os.kill(os.getpid(), signal.SIGTERM)
            return collect(*args, **kwargs)

        object.__setattr__(collector, "collect", stopped)  # frozen

    def sampled(self, setup, batch, rollouts):
        setup.ranks.sum(int(rollouts.lengths.sum()))
        return rollouts

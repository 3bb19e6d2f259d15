"""A part that adds a term to the loss: completions whose length drifts from a running mean are pulled back."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from apo_lightning.model.packing import Microbatch
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import StepPlan
from apo_lightning.types import LossOutput, Needs, Prompt, Rollouts, StepOutput


class LengthPull(Part):
    """Adds coef·(length − mean)/mean·log π(y) to the loss of each token, with the running mean of earlier steps."""

    name = "length_pull"
    needs = Needs(gradient_on="all")  # it learns from completions of A = 0 too: the update must run them

    def __init__(self, coef: float = 0.01, decay: float = 0.9) -> None:
        self.coef, self.decay = coef, decay
        self.mean_length = 0.0

    def sampled(self, setup: Setup, batch: Sequence[Prompt], rollouts: Rollouts) -> Rollouts:
        """Update the running mean, over all ranks."""
        tokens, completions = setup.ranks.sums([int(rollouts.lengths.sum()), len(rollouts.completions)])
        mean = tokens / completions
        self.mean_length = self.decay * self.mean_length + (1 - self.decay) * mean if self.mean_length else mean
        return rollouts

    def token_loss(self, setup: Setup, plan: StepPlan, microbatch: Microbatch, hidden: Tensor) -> LossOutput:
        """The term of each token; it gets the token's weight, as the policy's loss does."""
        table, index = plan.table, microbatch.token_index
        lengths = table.lengths.to(hidden.device)[table.sequence_ids[index]]
        excess = (lengths - self.mean_length) / self.mean_length
        logprobs = setup.policy.read_head(hidden, microbatch.targets, temperature=setup.settings.temperature).logprobs
        return LossOutput(per_token=self.coef * excess * logprobs, metrics={"length_pull/excess": excess})

    def metrics(self, setup: Setup, step: StepOutput) -> Mapping[str, float]:
        """Log the running mean."""
        return {"length_pull/mean": self.mean_length}

    def state_dict(self) -> Mapping[str, Any]:
        """What a checkpoint keeps of it: a run that was killed goes on with the same mean."""
        return {"mean_length": self.mean_length}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it."""
        self.mean_length = state["mean_length"]

"""What every step works with, and the parts that change a step without the algorithm box knowing of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from apo_lightning.contracts import Loss, Recipe
from apo_lightning.distributed.gathering import Ranks
from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch, PackedSequences
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.step.assignment import assign
from apo_lightning.step.plan import Minibatch, StepPlan, equalize_microbatches
from apo_lightning.step.settings import StepSettings
from apo_lightning.step.table import StepTable
from apo_lightning.step.update_record import MinibatchGradient, NonfiniteSteps
from apo_lightning.types import (
    TOKEN_SETS,
    Advantages,
    LossOutput,
    Needs,
    Prompt,
    Rollouts,
    StepOutput,
)


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Models, loss and sizes of a training run; the same in all of its steps."""

    policy: Policy
    reference: Reference | None
    """None: neither the loss nor a part nor a callback reads it."""
    loss: Loss
    parts: "Sequence[Part]"
    settings: StepSettings
    ranks: Ranks
    device: torch.device
    seed: int
    nonfinite: NonfiniteSteps
    prompts: Sequence[Prompt]
    """All problems to train on."""
    sample: Callable[..., Rollouts]
    """`RLVRModule.sample`, for `Part.sampled`: a stop signal elsewhere would end the run without a checkpoint."""

    @property
    def needs(self) -> Needs:
        """What the loss and the parts read, and on which tokens any of them can have a gradient."""
        needs = self.loss.needs
        needs = replace(needs, gradient_on=needs.gradient_on or "all")
        for part in self.parts:
            needs |= part.needs
        return needs

    @property
    def own_parameters(self) -> list[nn.Parameter]:
        """What the parts' optimizers train beside policy and `Part.models`; a copy on each rank, kept equal."""
        models = [self.policy, *(model for part in self.parts for model in part.models)]
        of_models = {id(parameter) for model in models for parameter in model.parameters()}
        optimized = [names.values() for part in self.parts for names, _ in part.optimizers.values()]
        return [parameter for own in optimized for parameter in own if id(parameter) not in of_models]

    def table(self, rollouts: Rollouts, advantages: Advantages) -> StepTable:
        """The table of a step from the rollouts that this rank sampled, and their advantages; collective."""
        num_minibatches = self.settings.minibatches_per_step
        assignment = assign(rollouts, advantages, self.needs, num_minibatches, self.ranks, self.device)
        return StepTable(rollouts, advantages, self.device, assignment)

    def microbatches(self, sequences: PackedSequences, completions: Sequence[int]) -> list[Microbatch]:
        """Micro-batches of these completions, equally many on all ranks; see `equalize_microbatches`. Collective."""
        budget = self.settings.tokens_per_microbatch
        return equalize_microbatches(sequences, completions, budget, self.ranks, self.device)[0]


class Part:
    """A change of the training step. Every method does nothing here; override those that the change needs.

    A step calls, for all parts in the order of the run's list, and on all ranks:

        sampled → tabled → planned → for each mini-batch: token_loss, clip_gradient, before_optimizer_step,
        optimizer_step → updated → metrics, output

    `setup` is what every step works with; see `Setup`. Time in `tabled`, `planned`, `before_optimizer_step` and
    `updated` is logged as `time/<name>`; that in the other methods belongs to the stage around them.
    """

    name: str = ""
    """Key of its state in checkpoints, and of its time; unique in a run."""
    needs: Needs = Needs()
    """`reference_model`: a reference is kept for it. `gradient_on`: tokens on which it adds to the loss, so that the
    update runs their completions. `reference_on`: of a part that replaces advantages, the tokens on which the loss may
    then read the reference; ranks share this work by it. What else a part reads, it computes."""
    columns: frozenset[str] = frozenset()
    """Names of the `StepTable.columns` that it writes."""
    held_steps: int = 0
    """The first training steps, in which the policy's own optimizer does not step."""

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError`, before any weights are loaded, where it has no use in such a run."""

    def notice(self, recipe: Recipe) -> str | None:
        """What a user should know before the run; None: nothing."""

    @property
    def models(self) -> Sequence[Policy]:
        """Models beside the policy, which are sharded and compiled as it is."""
        return ()

    @property
    def trained(self) -> Sequence[Policy]:
        """Those of `models` that the backward passes of the update train."""
        return ()

    @property
    def optimizers(self) -> Mapping[str, tuple[Mapping[str, nn.Parameter], Optimizer]]:
        """Its own optimizers with the parameters that each trains, by name.

        Gradients are emptied before every mini-batch, and are means over the ranks when `clip_gradient` is called.
        """
        return {}

    def configure(self) -> None:
        """Make its optimizers: models are sharded, and on their devices."""

    def begin(self, setup: Setup) -> None:
        """Before anything is sampled: the policy has the weights that a new run begins with."""

    # ------------------------------------------------------------------ in a step

    def sampled(self, setup: Setup, batch: Sequence[Prompt], rollouts: Rollouts) -> Rollouts:
        """This rank's rollouts of the step, which may be others.

        `batch` are the step's prompts, of all ranks. State that moves here is in `state_dict`: a run that is stopped
        while a later part samples saves the state from before the step.
        """
        return rollouts

    def tabled(self, setup: Setup, table: StepTable) -> None:
        """The table of the step exists; its advantages may be replaced."""

    def planned(self, setup: Setup, plan: StepPlan, advantages: Advantages) -> None:
        """All that the update will read is known, and the policy has not moved since it sampled."""

    def token_loss(
        self, setup: Setup, plan: StepPlan, microbatch: Microbatch, hidden: Float[Tensor, "tokens hidden"]
    ) -> LossOutput | None:
        """A loss of each token, added to the policy's with the same weight; None: none.

        `hidden` are the policy's last hidden states, with their gradient.
        """
        return None

    def clip_gradient(self, max_norm: float | None) -> float:
        """Clip the gradient of its own parameters; returns its norm, 0 without any."""
        return 0.0

    def before_optimizer_step(
        self, setup: Setup, plan: StepPlan, minibatch: Minibatch, gradient: MinibatchGradient
    ) -> None:
        """The gradient of a mini-batch is known, and no optimizer has stepped with it."""

    def optimizer_step(self, setup: Setup, *, policy_moved: bool) -> None:
        """The mini-batch is done; called unless it had no kept token or its gradient was not finite."""

    def updated(self, setup: Setup, step: int, optimizer: Optimizer) -> None:
        """All mini-batches are done; the engine has not got the weights yet. `optimizer` is the policy's."""

    def validated(self, setup: Setup, rollouts: Rollouts) -> None:
        """This rank's share of a held-out batch was sampled by the current policy."""

    def metrics(self, setup: Setup, step: StepOutput) -> Mapping[str, float]:
        """Numbers of the step by log name, over all ranks; `step` has those of the trunk."""
        return {}

    def output(self) -> Mapping[str, Any]:
        """Fields of the `StepOutput` that it fills in."""
        return {}

    # ------------------------------------------------------------------ in checkpoints

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """Large tensors of its state by name, no copies; on all ranks, and read into when a run is resumed."""
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """The rest of its state, equal on all ranks: numbers, strings, lists, dicts and small tensors."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` gave."""


def check_parts(needs: Needs, parts: Sequence[Part], *, loss: str) -> None:
    """Raise `ConfigError` where a loss reads a column that no part writes, or parts have one name or no such needs."""
    for part in parts:
        if type(part).token_loss is not Part.token_loss and part.needs.gradient_on is None:
            raise ConfigError(
                f"the part {part.name!r} adds to the loss of tokens and does not say on which: give it "
                f"needs = Needs(gradient_on=...), one of {', '.join(TOKEN_SETS)}"
            )
        told = replace(part.needs, gradient_on=None, reference_on=None, reference_model=False)
        unmet = [item.name for item in fields(Needs) if getattr(told, item.name) != item.default]
        if unmet:
            raise ConfigError(
                f"the part {part.name!r} has needs.{unmet[0]}, which is given to losses alone: a part declares "
                "gradient_on and reference_model, and computes what else it reads"
            )
    missing = needs.columns.difference(*(part.columns for part in parts))
    if missing:
        raise ConfigError(
            f"algo.loss is {loss}, which reads the column {sorted(missing)[0]}, and no part gives it: add the part to "
            "algo.parts"
        )
    names = [part.name for part in parts]
    twice = next((name for name in names if names.count(name) > 1 or not name), None)
    if twice is not None:
        raise ConfigError(f"two parts of the run have the name {twice!r}: give each a name of its own")

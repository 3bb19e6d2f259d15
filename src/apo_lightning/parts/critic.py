"""A critic: a model with a value head, which predicts the return from each state of a completion, and its loss."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from apo_lightning.advantages import GAE, gae_of
from apo_lightning.common.ranges import Checked, OneOf, Within
from apo_lightning.contracts import Recipe
from apo_lightning.distributed.gathering import Ranks
from apo_lightning.distributed.root_params import clip_grad_norm, unsharded_root
from apo_lightning.errors import ConfigError
from apo_lightning.losses import SequenceRatio
from apo_lightning.losses.functional import Number
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy
from apo_lightning.step.part import Part, Setup
from apo_lightning.step.plan import StepPlan
from apo_lightning.step.table import StepTable
from apo_lightning.types import LossOutput, Needs, StepOutput

KINDS = ("value_head", "separate")


@dataclass(frozen=True, kw_only=True)
class CriticSettings(Checked):
    """Which model predicts values, and how it learns. Its fields are the keys of `configs/base/critic.yaml`.

    Attributes:
        optimizer: parameters → optimizer of the critic, whose learning rate stays constant.
        kind: `value_head`: a linear layer on the policy's last hidden states, through which the value loss also trains
            the policy. `separate`: a copy of the initial policy with such a layer, which shares no weights with it.
        value_coef: > 0, of the value loss beside the policy's loss; not used with `separate`, where nothing is added.
        value_clip: c > 0 of `clipped_value_loss`; None: no clip.
        warmup_steps: rollouts, from the first, that train the critic's own weights alone.

    Raises:
        ConfigError: a value outside its range.
    """

    optimizer: Callable[..., Optimizer]
    kind: Annotated[str, OneOf(KINDS)] = "value_head"
    value_coef: Annotated[float | int, Within("(0, inf)", "such as 0.5")] = 0.5
    value_clip: Annotated[float | int | None, Within("(0, inf]", "or null for no clip")] = 0.2
    warmup_steps: Annotated[int, Within("[0, inf)")] = 0

    section: ClassVar[str] = "critic."

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError` where the critic has no use, or would hold the policy for the whole run."""
        advantage, max_steps, loss = recipe.advantage, recipe.max_steps, recipe.loss
        if gae_of(advantage) is None:
            raise ConfigError(
                f"algo.critic is {self.kind} and algo.advantage {type(advantage).__name__}: GAE reads the values of a "
                "critic, and no other estimator does; choose algo=ppo, or leave the critic out"
            )
        if self.warmup_steps >= max_steps:
            raise ConfigError(
                f"algo.critic.warmup_steps is {self.warmup_steps} and trainer.max_steps {max_steps}: the policy would "
                "never be trained; give fewer steps of warm-up"
            )
        if isinstance(loss, SequenceRatio):
            raise ConfigError(
                f"algo.loss is {type(loss).__name__} with a critic: its ratio of a whole completion needs one "
                "advantage a completion, and a critic gives one a token; leave the critic out"
            )


class Critic(Part):
    """A value head on the policy that is trained, or on a copy of it, which learns to predict returns.

    The head starts at zero, so that V = 0 at the first step. Advantages and returns are those of `gae`. The update runs
    all kept completions: the value loss has a gradient on each of their tokens.

    Args:
        settings: of the critic.
        gae: the run's advantage estimator, or the one that it wraps.
        policy: before training, and before it is sharded.
    """

    name = "critic"
    needs = Needs(gradient_on="all", reference_on="all")  # which advantages are negative, values decide
    columns = frozenset({"values", "returns"})

    def __init__(self, settings: CriticSettings, gae: GAE, policy: Policy) -> None:
        self.settings, self.gae = settings, gae
        self.held_steps = settings.warmup_steps
        self.is_separate = settings.kind == "separate"
        self.policy = copy.deepcopy(policy) if self.is_separate else policy
        model = self.policy.model
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        if self.is_separate and head is not None and head.weight is not embedding.weight:
            head.requires_grad_(False)  # it would have no gradient, for which DDP would wait
        width = self.policy.head_weight.shape[1]
        self.policy.value_head = nn.Linear(width, 1, device=self.policy.head_weight.device)
        self.policy.reset_attached()

    @property
    def models(self) -> list[Policy]:
        """The copy, if there is one."""
        return [self.policy] if self.is_separate else []

    @property
    def trained(self) -> list[Policy]:
        """The copy, through which the value loss has a gradient."""
        return self.models

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The weights that the critic's optimizer trains, by name."""
        owner = self.policy if self.is_separate else self.policy.value_head
        assert isinstance(owner, nn.Module)
        return {name: parameter for name, parameter in owner.named_parameters() if parameter.requires_grad}

    def configure(self) -> None:
        """Make the optimizer."""
        self.optimizer = self.settings.optimizer(list(self.parameters.values()))

    @property
    def optimizers(self) -> Mapping[str, tuple[Mapping[str, nn.Parameter], Optimizer]]:
        """The critic's own."""
        return {"critic_optimizer": (self.parameters, self.optimizer)}

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        """The critic's own weights."""
        return {f"critic.{name}": parameter.detach() for name, parameter in self.parameters.items()}

    def values(
        self, microbatch: Microbatch, policy_hidden: Float[Tensor, "tokens hidden"] | None = None
    ) -> Float[Tensor, "tokens"]:
        """V of the state before each response token; a separate critic does not read the policy's hidden states."""
        hidden = policy_hidden
        if hidden is None or self.is_separate:
            hidden = self.policy.hidden_states(microbatch)
        head = self.policy.value_head
        assert isinstance(head, nn.Linear)
        with torch.autocast(hidden.device.type, enabled=False):
            return head(hidden.float()).squeeze(1)

    @torch.no_grad()
    def tabled(self, setup: Setup, table: StepTable) -> None:
        """Write values and returns into the table, and GAE's advantages in the place of the rewards; collective.

        All kept completions are run; on the others V is 0.
        """
        scored = torch.zeros_like(table.advantages)
        with unsharded_root(self.policy):
            for microbatch in setup.microbatches(table.sequences, table.keep.nonzero().flatten().tolist()):
                scored[microbatch.token_index] = self.values(microbatch)
        values = scored.cpu().double()
        # The estimator has given each completion its reward.
        rewards = table.advantages.cpu()[table.lengths.cumsum(0) - 1]
        advantages, returns = self.gae.of_values(rewards, values, table.lengths)
        columns = torch.stack([advantages, values, returns, returns - values])
        num, means, variances = moments(columns[:, table.kept_tokens.cpu()], setup.ranks)
        advantages = self.gae.whitened(advantages, means[0], variances[0] * num / max(num - 1, 1))
        table.columns |= {"values": scored, "returns": returns.to(scored)}
        table.advantages = advantages.to(scored)
        self.found = {
            "critic/value_mean": means[1],
            "critic/return_mean": means[2],
            "critic/explained_variance": 1 - variances[3] / variances[2] if variances[2] > 0 else math.nan,
        }

    def token_loss(
        self, setup: Setup, plan: StepPlan, microbatch: Microbatch, hidden: Float[Tensor, "tokens hidden"]
    ) -> LossOutput:
        """The value loss of each token, times its coefficient; the metrics are without it."""
        old_values, returns = (plan.table.columns[name][microbatch.token_index] for name in ("values", "returns"))
        values = self.values(microbatch, hidden)
        output = clipped_value_loss(values, old_values, returns, self.settings.value_clip)
        coefficient = 1.0 if self.is_separate else self.settings.value_coef
        return replace(output, per_token=coefficient * output.per_token)

    def clip_gradient(self, max_norm: float | None) -> float:
        """Clip the gradient of the critic's own weights."""
        return clip_grad_norm(self.parameters.values(), max_norm)

    def optimizer_step(self, setup: Setup, *, policy_moved: bool) -> None:
        """Train the critic's own weights."""
        self.optimizer.step()

    def metrics(self, setup: Setup, step: StepOutput) -> Mapping[str, float]:
        """Means of values and returns, and the explained variance."""
        return self.found


def moments(columns: Float[Tensor, "columns tokens"], ranks: Ranks) -> tuple[float, list[float], list[float]]:
    """Number of tokens, means and population variances of float64 columns over all ranks; NaN without; collective."""
    sums = torch.stack([columns, columns.square()]).sum(2).flatten().tolist()
    num, *totals = ranks.sums([columns.shape[1], *sums])
    means, squares = torch.tensor(totals, dtype=torch.float64).view(2, -1) / num
    return num, means.tolist(), (squares - means.square()).clamp(min=0).tolist()


def clipped_value_loss(
    values: Float[Tensor, "tokens"],
    old_values: Float[Tensor, "tokens"],
    returns: Float[Tensor, "tokens"],
    clip: Number | None,
) -> LossOutput:
    """Half the squared error of a value; its clipped form, where that is larger, keeps it near the old value.

        L_V = ½·max((V − R)², (V_old + clamp(V − V_old, ±c) − R)²)

    Source: Schulman et al.'s implementation of PPO; described by Huang et al. 2022, "The 37 implementation details of
    proximal policy optimization", detail 9.

    Metrics: `critic/value_clip_fraction`, 1 where the clipped form is larger, so that the loss has no gradient.

    Args:
        values: V; carries the gradient.
        old_values: V_old, at the beginning of the step.
        returns: R.
        clip: c > 0; None: no clip.

    Example:
        >>> value = torch.tensor([0.9])
        >>> clipped_value_loss(value, torch.tensor([0.5]), torch.tensor([1.0]), clip=0.2).per_token  # ½·(0.7 − 1)²
        tensor([0.0450])
    """
    errors = (values - returns).square()
    clipped_errors = errors
    if clip is not None:
        clipped_errors = (old_values + (values - old_values).clamp(-clip, clip) - returns).square()
    is_clipped = clipped_errors > errors
    metrics = {"critic/value_clip_fraction": is_clipped.detach().to(values.dtype)}
    return LossOutput(per_token=0.5 * torch.where(is_clipped, clipped_errors, errors), metrics=metrics)

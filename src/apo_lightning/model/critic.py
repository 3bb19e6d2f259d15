"""A critic: a model with a value head, which predicts the return from each state of a completion."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import Optimizer

from apo_lightning.errors import ConfigError
from apo_lightning.model.packing import Microbatch
from apo_lightning.model.policy import Policy

KINDS = ("value_head", "separate")


@dataclass(frozen=True, kw_only=True)
class CriticSettings:
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
    kind: str = "value_head"
    value_coef: float | int = 0.5
    value_clip: float | int | None = 0.2
    warmup_steps: int = 0

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"critic.kind is {self.kind!r}: choose value_head or separate")
        if not 0 < self.value_coef < float("inf"):
            raise ConfigError(f"critic.value_coef is {self.value_coef}: give a finite number above 0, such as 0.5")
        if self.value_clip is not None and not self.value_clip > 0:
            raise ConfigError(f"critic.value_clip is {self.value_clip}: give a positive number, or null for no clip")
        if self.warmup_steps < 0:
            raise ConfigError(f"critic.warmup_steps is {self.warmup_steps}: give a number of rollouts, 0 or more")


class Critic:
    """A policy with a value head: the one that is trained, or a copy of it.

    The head starts at zero, so that V = 0 at the first step.

    Args:
        settings: of the critic.
        policy: before training, and before it is sharded.
    """

    def __init__(self, settings: CriticSettings, policy: Policy) -> None:
        self.settings = settings
        self.is_separate = settings.kind == "separate"
        self.policy = copy.deepcopy(policy) if self.is_separate else policy
        model = self.policy.model
        head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
        if self.is_separate and head is not None and head.weight is not embedding.weight:
            head.requires_grad_(False)  # it would have no gradient, for which DDP would wait
        self.policy.add_value_head()

    @property
    def copies(self) -> list[Policy]:
        """Additional models, which must be sharded like the policy."""
        return [self.policy] if self.is_separate else []

    @property
    def parameters(self) -> Mapping[str, nn.Parameter]:
        """The weights that the critic's optimizer trains, by name."""
        owner = self.policy if self.is_separate else self.policy.value_head
        assert owner is not None
        return {name: parameter for name, parameter in owner.named_parameters() if parameter.requires_grad}

    @property
    def coefficient(self) -> float | int:
        """Of the value loss in the total."""
        return 1.0 if self.is_separate else self.settings.value_coef

    def begin(self) -> None:
        """Make the optimizer, once the critic is sharded and on its device."""
        self.optimizer = self.settings.optimizer(list(self.parameters.values()))

    def values(
        self, microbatch: Microbatch, policy_hidden: Float[Tensor, "tokens hidden"] | None = None
    ) -> Float[Tensor, "tokens"]:
        """V of the state before each response token; a separate critic does not read the policy's hidden states."""
        hidden = policy_hidden
        if hidden is None or self.is_separate:
            hidden = self.policy.hidden_states(microbatch)
        head = self.policy.value_head
        assert head is not None
        with torch.autocast(hidden.device.type, enabled=False):
            return head(hidden.float()).squeeze(1)

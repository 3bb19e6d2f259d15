"""What the reference policy π_ref begins with, and when it follows the policy."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig

from apo_lightning.common.ranges import Checked, Count, Within
from apo_lightning.contracts import Recipe
from apo_lightning.errors import ConfigError
from apo_lightning.model.spec import PolicySpec


@dataclass(frozen=True, kw_only=True)
class ReferenceSchedule(Checked):
    """The reference over a run; its fields are the keys of `reference:`. At most one of the three rules is given.

        reset     θ_ref ← θ, and the optimizer's state ← 0      every `reset_every` training steps
        refresh   θ_ref ← α·θ + (1 − α)·θ_ref                   every `refresh_every` training steps
        ema       θ_ref ← τ·θ_ref + (1 − τ)·θ                   after every optimizer step

    They act after the update and before the engine gets the weights; the learning-rate schedule goes on. Right after a
    reset, or a refresh with α = 1, the KL is 0, r_anchor is 1, and the anchors are the policy's own top K. With `ema`
    and several mini-batches a step, the reference's log-probs and anchors are those from before the update, while an
    exact KL reads the current weights.

    Source: reset: Liu et al. 2025, ProRL (arXiv 2505.24864); refresh: TRL's `ref_model_mixup_alpha` 0.6 and
    `ref_model_sync_steps` 512, after Gorbatovski et al. 2024 (arXiv 2404.09656); ema: Ramé et al. 2024, WARP (arXiv
    2406.16768), where the moving average of the policy anchors the KL.
    Departure: TRL counts optimizer steps. ProRL also resets when validation stagnates.

    Attributes:
        path: weights that the reference begins with; None: those that training begins with.
        reset_every: training steps (rollouts) between two resets.
        refresh_every: training steps between two refreshes.
        refresh_alpha: α in [0, 1], the weight of the policy.
        ema_tau: τ in [0, 1], the weight of the reference.

    Raises:
        ConfigError: a value is out of range, or two rules are given.

    Example:
        >>> ReferenceSchedule(reset_every=3).age(5)
        1
    """

    path: str | None = None
    reset_every: Count | None = None
    refresh_every: Count | None = None
    refresh_alpha: Annotated[float | int, Within("[0, 1]")] = 0.6
    ema_tau: Annotated[float | int | None, Within("[0, 1]")] = None

    section: ClassVar[str] = "reference."

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = {name: getattr(self, name) for name in ("reset_every", "refresh_every", "ema_tau")}
        given = [f"reference.{name}={value}" for name, value in rules.items() if value is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: the reference follows one rule; leave the others null")

    def check(self, recipe: Recipe) -> None:
        """Raise `ConfigError` if it cannot be the schedule of a run."""
        model: PolicySpec = recipe.model
        has_lora = recipe.lora is not None
        rule = f"reference.{self.rule} is {getattr(self, self.rule)}" if self.rule else None
        if rule and not recipe.needs.reference:
            raise ConfigError(f"{rule}, but neither the loss nor a callback reads a reference: leave it null")
        if rule and has_lora:
            raise ConfigError(
                f"{rule}: with adapters the reference is the policy without them, and cannot follow it; leave it null, "
                "or train all weights with policy=full"
            )
        if self.path is None:
            return
        given = f"reference_path is {self.path}"
        if has_lora or recipe.is_sharded:
            raise ConfigError(
                f"{given}: with adapters or a sharded trainer the reference is the model that training begins with; "
                "leave reference_path out, or train all weights unsharded"
            )
        other = replace(model, path=self.path, config=None)
        if other.load_tokenizer().get_vocab() != recipe.tokenizer.get_vocab():
            raise ConfigError(f"{given}, whose tokens differ from those of {model.path}")
        config, own = other.load_config(), model.load_config()
        if config.vocab_size != own.vocab_size:
            raise ConfigError(
                f"{given}, whose head has {config.vocab_size} rows, and that of {model.path} {own.vocab_size}"
            )
        if rule and _shapes(config) != _shapes(own):
            raise ConfigError(f"{rule}, but {given}, which has other layers than {model.path}: leave {self.rule} null")

    @property
    def rule(self) -> str | None:
        """The key of the rule that changes the reference; None: it stays frozen."""
        names = ("reset_every", "refresh_every", "ema_tau")
        return next((name for name in names if getattr(self, name) is not None), None)

    @property
    def mixes(self) -> bool:
        """Whether the reference moves by less than the whole way to the policy.

        It must be kept in float32 then: bfloat16 has 8 significant bits, and would lose most increments.
        """
        return self.ema_tau is not None or (self.refresh_every is not None and self.refresh_alpha < 1)

    def age(self, step: int) -> int | None:
        """Training steps since the reference changed, at a step (from 1); None: it never does, or does all the time."""
        every = self.reset_every or self.refresh_every
        return None if every is None else (step - 1) % every

    def policy_weight(self, step: int) -> float | int:
        """The weight of the policy in the reference after a training step; 0: the reference stays as it is."""
        if self.age(step + 1) != 0:
            return 0.0
        return 1.0 if self.reset_every is not None else self.refresh_alpha


def _shapes(config: PretrainedConfig) -> list[torch.Size]:
    """The shapes of a model's parameters; allocates nothing."""
    with torch.device("meta"):
        return [parameter.shape for parameter in AutoModelForCausalLM.from_config(config).parameters()]

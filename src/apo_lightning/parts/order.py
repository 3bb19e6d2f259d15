"""The parts of a run, in the order in which they act; what hangs on a step by a key of its own."""

from collections.abc import Mapping
from typing import Any

from apo_lightning.advantages import gae_of
from apo_lightning.contracts import Recipe
from apo_lightning.errors import ConfigError
from apo_lightning.model.policy import Policy, Reference
from apo_lightning.parts.critic import Critic
from apo_lightning.parts.engine_check import EngineCheck
from apo_lightning.parts.importance import ImportanceByLength
from apo_lightning.parts.moving_reference import MovingReference
from apo_lightning.parts.probes import Probes
from apo_lightning.step.part import Part

OF_ALGO = ("dynamic_sampling", "critic")
"""Keys of `algo` for what the framework hangs on a step; `algo.parts` names those of others."""


def keys_of_options(cfg: Mapping[str, Any]) -> list[str]:
    """The keys of what a configuration hangs on a step, but for its reference."""
    keys = [f"algo.{name}" for name in OF_ALGO if cfg["algo"].get(name) is not None]
    parts = cfg["algo"].get("parts") or {}
    return [*keys, *(f"algo.parts.{name}" for name, node in parts.items() if node is not None), "averaging"]


def check_values_given(recipe: Recipe) -> None:
    """Raise `ConfigError` for an estimator that reads the values of a critic where there is none."""
    if gae_of(recipe.advantage) is not None and "algo.critic" not in recipe.options:
        raise ConfigError(
            "algo.advantage is GAE, which reads the values of a critic: choose algo=ppo, or give algo.critic"
        )


def parts_of(recipe: Recipe, policy: Policy, reference: Reference | None) -> list[Part]:
    """The parts of a run whose policy has the weights before training, and is not sharded yet."""
    options, gae = recipe.options, gae_of(recipe.advantage)
    schedule, averaging = options["reference"], options["averaging"]
    probing = [callback for callback in recipe.callbacks.values() if hasattr(callback, "probe")]
    found: list[Part | None] = [
        options.get("algo.dynamic_sampling"),
        None if gae is None else Critic(options["algo.critic"], gae, policy),
        ImportanceByLength() if recipe.loss.importance is not None else None,
        EngineCheck(),
        averaging if averaging.weight else None,
        MovingReference(reference, schedule) if reference is not None and schedule.rule else None,
        Probes(probing) if probing else None,
        *(part for key, part in options.items() if key.startswith("algo.parts.")),
    ]
    return [part for part in found if part is not None]

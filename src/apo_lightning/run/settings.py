"""The settings of a step, the callbacks of a run and what these read, from its configuration."""

import functools
from collections.abc import Sequence
from dataclasses import fields
from typing import get_type_hints

import lightning.pytorch as pl
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from apo_lightning.callbacks import StepCallback
from apo_lightning.data.sources import ProblemSource
from apo_lightning.errors import ConfigError
from apo_lightning.losses import PolicyLoss
from apo_lightning.run.lightning_options import check_callback, check_trainer
from apo_lightning.run.value_types import SEED
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Needs

ANNOTATIONS = {"seed": SEED, **get_type_hints(StepSettings)}
"""What the settings of a training run are that belong to no `_target_`, for `check_values`."""

SECTIONS = {
    "algo": ("loss", "advantage", "aggregation", "critic", "dynamic_sampling", "auxiliary", "parts"),
    "policy": ("lora",),
}
"""Keys of the sections that are no `_target_`, which would refuse others."""


def step_settings(cfg: DictConfig, source: ProblemSource) -> StepSettings:
    """Sizes of a step, those of prompts and completions from the data; raises `ConfigError` if they cannot work."""
    for section, known in SECTIONS.items():
        text = OmegaConf.to_yaml(cfg)
        for key in map(str, cfg[section]):
            if key not in known and f"${{{section}.{key}" not in text:
                raise ConfigError(f"{section}.{key}: nothing reads it; {section} has {', '.join(known)}")
    for part in ("loss", "advantage"):
        if cfg.algo.get(part) is None:
            raise ConfigError(
                f"the algorithm has no `{part}`: name one, or begin its YAML with defaults: [grpo, _self_]"
            )
    for name in ("top_p", "top_k", "min_p"):
        # With truncated sampling, π_old/π_rollout and the loss's ratio would mix two distributions.
        if name in cfg:
            raise ConfigError(
                f"{name} is {cfg[name]}: training samples from the whole distribution, which the probabilities of the "
                "loss are of; leave it out (apo evaluate takes top_p)"
            )
    return StepSettings(
        **{field.name: cfg[field.name] for field in fields(StepSettings) if field.name in cfg},
        max_prompt_tokens=source.max_prompt_tokens,
        max_completion_tokens=source.max_completion_tokens,
    )


def callbacks_for(cfg: DictConfig, loss: PolicyLoss) -> list[pl.Callback]:
    """The callbacks of the configuration; diagnostics are given the loss that they will watch."""
    check_trainer(cfg.trainer, cfg)
    callbacks = []
    for name, node in ((key, node) for key, node in cfg.callbacks.items() if node is not None):
        # Lightning's own tell a dict from a number by its class, which a node of OmegaConf has not.
        callback = instantiate(node, _convert_="all")
        check_callback(str(name), callback, node)
        callbacks.append(callback)
        if isinstance(callback, StepCallback):
            callback.prepare(loss)
    return callbacks


def all_needs(loss: PolicyLoss, callbacks: Sequence[pl.Callback]) -> Needs:
    """The inputs that the loss or any callback needs, for tokens of the step or of its own probes."""
    return functools.reduce(Needs.__or__, (getattr(callback, "needs", Needs()) for callback in callbacks), loss.needs)

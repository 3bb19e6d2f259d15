"""Checks of a run's configuration before any weights are loaded. Each raises one line, or returns."""

from typing import Any

import torch
from omegaconf import DictConfig
from transformers import PretrainedConfig

from apo_lightning.errors import ConfigError
from apo_lightning.model.architecture import check_length
from apo_lightning.step.settings import StepSettings
from apo_lightning.types import Needs


def check_steps(max_steps: int, val_check_interval: Any, settings: StepSettings) -> int:
    """The rollouts that the schedule is made for; raises `ConfigError` for a run of no step, or a part of one."""
    if max_steps < 1:
        raise ConfigError(f"trainer.max_steps is {max_steps}: give the rollouts to train, 1 or more")
    if val_check_interval is not None and (not isinstance(val_check_interval, int) or val_check_interval < 1):
        raise ConfigError(
            f"trainer.val_check_interval is {val_check_interval}: give the rollouts between two validation passes, a "
            "whole number from 1"
        )
    horizon = max_steps if settings.schedule_horizon is None else settings.schedule_horizon
    if horizon < max_steps:
        raise ConfigError(
            f"schedule_horizon is {horizon} and trainer.max_steps {max_steps}: the schedule would end before the run; "
            f"give at least {max_steps}, or null"
        )
    return horizon


def check_strategy(strategy: Any, world_size: int) -> None:
    """Raise `ConfigError` if `trainer.strategy`, a name or a node, has more or fewer shards than processes."""
    shards = strategy.get("data_parallel_size", world_size) if isinstance(strategy, DictConfig) else world_size
    if shards != world_size:
        raise ConfigError(
            f"trainer.strategy.data_parallel_size is {shards}, but trainer.devices × trainer.num_nodes is "
            f"{world_size}: a process holds one shard, so make them equal"
        )


def check_share(settings: StepSettings, world_size: int) -> None:
    """Raise `ConfigError` where the ranks cannot share a mini-batch evenly."""
    if settings.prompts_per_minibatch % world_size:
        raise ConfigError(
            f"prompts_per_minibatch is {settings.prompts_per_minibatch} and cannot be shared evenly by {world_size} "
            f"processes: give a multiple of {world_size}"
        )


def check_model(name: str, config: PretrainedConfig, needs: Needs, settings: StepSettings) -> None:
    """Raise `ConfigError` if the longest sequence, or the anchors of loss and callbacks, do not fit the model."""
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and settings.max_model_len > longest:
        raise ConfigError(
            f"max_prompt_tokens {settings.max_prompt_tokens} + max_completion_tokens "
            f"{settings.max_completion_tokens} = {settings.max_model_len} does not fit {name}, which reads {longest} "
            f"tokens: lower data.max_completion_tokens or data.max_prompt_tokens"
        )
    check_length(config, settings.max_model_len, "lower data.max_completion_tokens or data.max_prompt_tokens")
    if needs.anchor_size >= config.vocab_size:
        raise ConfigError(
            f"anchor_size is {needs.anchor_size} and the vocabulary of {name} has {config.vocab_size} tokens: give an "
            "anchor_size below that"
        )


def check_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Raise `ConfigError` for bfloat16 on a GPU that does not support it."""
    if device.type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise ConfigError("model.compute_dtype is bfloat16, which this GPU does not support: choose float32")

"""What can be known to be wrong before a single weight is loaded. Every check ends in one line or in silence."""

import os

import torch
from lightning.fabric.plugins.environments import SLURMEnvironment
from transformers import PretrainedConfig

from apo_lightning.errors import ConfigError
from apo_lightning.types import Needs
from apo_lightning.update.settings import StepSettings


def requested_devices(accelerator: str, devices: int | str) -> tuple[torch.device, int]:
    """The kind of device that the trainer asks for, and how many on each machine, whether or not they are there."""
    available = torch.cuda.device_count()
    wants_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and available > 0)
    wanted = int(devices) if str(devices).isdigit() else max(available, 1)
    return torch.device("cuda" if wants_gpu else "cpu"), wanted


def check_devices(accelerator: str, devices: int | str, num_nodes: int) -> tuple[torch.device, int]:
    """The kind of device of every rank, and how many ranks there will be.

    Raises:
        ConfigError: the trainer asks for GPUs that are not there.
    """
    device, wanted = requested_devices(accelerator, devices)
    available = torch.cuda.device_count()
    if device.type == "cuda" and available < wanted:
        raise ConfigError(
            f"the trainer asks for {wanted} GPU{'s' * (wanted > 1)} (trainer.accelerator={accelerator}, "
            f"trainer.devices={devices}) and this machine has {available}: choose trainer=cpu, or run it where they are"
        )
    return device, wanted * num_nodes


def check_launch(world_size: int) -> None:
    """Whether somebody starts the other processes of this run: whoever sets `LOCAL_RANK` has said so.

    Args:
        world_size: devices × nodes.

    Raises:
        ConfigError: it is set, and where the processes meet is not: this one would wait half an hour for the others.
    """
    is_told = "MASTER_PORT" in os.environ or SLURMEnvironment.detect()  # of a job's number Lightning makes the port
    if world_size > 1 and "LOCAL_RANK" in os.environ and not is_told:
        raise ConfigError(
            f"LOCAL_RANK is {os.environ['LOCAL_RANK']} in the environment, so that somebody else starts the "
            f"{world_size} processes of this run, but MASTER_PORT, where they would meet, is not set: unset "
            "LOCAL_RANK, or start them by torchrun"
        )


def check_share(settings: StepSettings, world_size: int) -> None:
    """Raise `ConfigError` where the ranks cannot share a mini-batch evenly."""
    if settings.prompts_per_minibatch % world_size:
        raise ConfigError(
            f"prompts_per_minibatch is {settings.prompts_per_minibatch} and cannot be shared evenly by {world_size} "
            f"processes: give a multiple of {world_size}"
        )


def check_model(name: str, config: PretrainedConfig, vocab_size: int, needs: Needs, settings: StepSettings) -> None:
    """Whether the model can hold the sequences and offer the anchors.

    Args:
        name: of the model, for the message.
        config: its architecture.
        vocab_size: rows of its head.
        needs: of the loss and the callbacks together.
        settings: sizes of a step.

    Raises:
        ConfigError: the longest sequence does not fit, or there are fewer tokens than anchors.
    """
    longest = getattr(config, "max_position_embeddings", None)
    if longest is not None and settings.max_model_len > longest:
        raise ConfigError(
            f"max_prompt_tokens {settings.max_prompt_tokens} + max_completion_tokens "
            f"{settings.max_completion_tokens} = {settings.max_model_len} does not fit {name}, which reads {longest} "
            f"tokens: lower data.max_completion_tokens or data.max_prompt_tokens"
        )
    if needs.anchor_size >= vocab_size:
        raise ConfigError(
            f"anchor_size is {needs.anchor_size} and the vocabulary of {name} has {vocab_size} tokens: an anchor must "
            f"be a proper part of it"
        )


def check_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Whether the device can compute in the chosen dtype at all.

    Raises:
        ConfigError: bfloat16 on a GPU without it.
    """
    if device.type == "cuda" and dtype == torch.bfloat16 and not torch.cuda.is_bf16_supported():
        raise ConfigError("model.compute_dtype is bfloat16, which this GPU does not compute in: choose float32")

"""The devices of a run, checked before anything but torch is imported: a refusal is then said at once."""

from typing import Any

import torch

from apo_lightning.common.launch import check_launch
from apo_lightning.errors import ConfigError

ACCELERATORS = ("auto", "cpu", "gpu", "cuda")
"""Values of `trainer.accelerator` that this project has been written for."""


def requested_devices(trainer: Any) -> tuple[torch.device, int]:
    """The kind of device that `trainer` asks for, and how many per machine, whether or not they exist.

    Raises `ConfigError` if it names no device or no number of them.
    """
    accelerator, devices = trainer.accelerator, trainer.devices
    if accelerator not in ACCELERATORS:
        raise ConfigError(f"trainer.accelerator is {accelerator}: choose {', '.join(ACCELERATORS)}")
    if devices != "auto" and not (str(devices).isdigit() and int(devices) > 0):
        raise ConfigError(
            f"trainer.devices is {devices}: give their number, or auto (CUDA_VISIBLE_DEVICES chooses among them)"
        )
    available = torch.cuda.device_count()
    wants_gpu = accelerator in ("gpu", "cuda") or (accelerator == "auto" and available > 0)
    wanted = (available if wants_gpu else 1) if devices == "auto" else int(devices)
    return torch.device("cuda" if wants_gpu else "cpu"), wanted


def check_devices(trainer: Any) -> tuple[torch.device, int]:
    """The kind of device of every rank, and the number of ranks.

    Raises `ConfigError` if GPUs are missing, or if the environment says that others start this run.
    """
    device, wanted = requested_devices(trainer)
    check_launch(wanted, trainer.num_nodes)
    available = torch.cuda.device_count()
    if device.type == "cuda" and available < wanted:
        raise ConfigError(
            f"the trainer asks for {wanted} GPU{'s' * (wanted > 1)} (trainer.accelerator={trainer.accelerator}, "
            f"trainer.devices={trainer.devices}) and this machine has {available}: choose trainer=cpu, or another "
            "machine"
        )
    return device, wanted * trainer.num_nodes

"""This process among those of the run, wherever there is no trainer to ask."""

import torch


def process_rank() -> int:
    """The rank of this process; 0 where there is no process group."""
    return torch.distributed.get_rank() if has_process_group() else 0


def num_processes() -> int:
    """The number of processes in the process group; 1 where there is none."""
    return torch.distributed.get_world_size() if has_process_group() else 1


def has_process_group() -> bool:
    """True where there is a process group, even of this process alone."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()

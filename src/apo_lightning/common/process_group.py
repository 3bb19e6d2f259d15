"""Rank and number of processes, for code without access to the trainer."""

import torch


def process_rank() -> int:
    """The rank of this process; 0 without a process group."""
    return torch.distributed.get_rank() if has_process_group() else 0


def num_processes() -> int:
    """The number of processes in the process group; 1 without one."""
    return torch.distributed.get_world_size() if has_process_group() else 1


def has_process_group() -> bool:
    """True if there is a process group, even one of this process only."""
    return torch.distributed.is_available() and torch.distributed.is_initialized()

"""This process among those of the run, wherever there is no trainer to ask."""

import torch


def process_rank() -> int:
    """The rank of this process; 0 where there is no process group."""
    return torch.distributed.get_rank() if _is_initialized() else 0


def num_processes() -> int:
    """The number of processes in the process group; 1 where there is none."""
    return torch.distributed.get_world_size() if _is_initialized() else 1


def _is_initialized() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()

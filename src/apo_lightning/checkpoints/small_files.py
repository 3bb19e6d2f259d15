"""The small files of a checkpoint: plain data, read back without running any code."""

from pathlib import Path
from typing import IO, Any, cast

import torch

from apo_lightning.checkpoints.writing import Written

TENSORS = "tensors"
"""The folder of the large ones."""
SHARED = "shared.pt"
"""What all ranks know alike."""


def rank_file(rank: int) -> str:
    """What only one rank knows."""
    return f"rank_{rank:05d}.pt"


def save_plain(content: Any, path: Path, written: Written) -> None:
    """Numbers, strings, lists, dicts and tensors."""
    with written.open(path) as file:
        torch.save(content, cast("IO[bytes]", file))


def load_plain(path: Path) -> Any:
    """Runs nothing."""
    return torch.load(path, weights_only=True, map_location="cpu")

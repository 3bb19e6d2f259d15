"""The small files of a checkpoint: plain data, read back without running any code."""

from pathlib import Path
from typing import Any

import torch

from apo_lightning.checkpoints.folder import flush

TENSORS = "tensors"
"""The folder of the large ones."""
SHARED = "shared.pt"
"""What all ranks know alike."""


def rank_file(rank: int) -> str:
    """What only one rank knows."""
    return f"rank_{rank:05d}.pt"


def save_plain(content: Any, path: Path) -> None:
    """Numbers, strings, lists, dicts and tensors."""
    with path.open("wb") as file:  # by its path torch would hide why a file cannot be opened
        torch.save(content, file)
    flush(path)


def load_plain(path: Path) -> Any:
    """Runs nothing."""
    return torch.load(path, weights_only=True, map_location="cpu")

"""Saving, stopping and resuming a run; start reading at `checkpointer.py`."""

from apo_lightning.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from apo_lightning.checkpoints.folder import load_snapshot, snapshots_of
from apo_lightning.checkpoints.resume import find_checkpoint
from apo_lightning.checkpoints.stop import GenerationStopped, StopRequest

__all__ = [
    "CheckpointSettings",
    "Checkpointer",
    "GenerationStopped",
    "StopRequest",
    "find_checkpoint",
    "load_snapshot",
    "snapshots_of",
]

"""Saving, stopping and resuming a run; start reading at `checkpointer.py`."""

from apo_lightning.checkpoints.checkpointer import Checkpointer, CheckpointSettings
from apo_lightning.checkpoints.stop import StopRequest

__all__ = ["CheckpointSettings", "Checkpointer", "StopRequest"]

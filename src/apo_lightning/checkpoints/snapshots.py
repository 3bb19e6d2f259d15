"""Snapshots: the trained weights at intervals of a run, to study how the policy changed.

A snapshot is a checkpoint folder without optimizer and run state; none is ever deleted. The initial model is no
snapshot, since it can be loaded from its source.
"""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from apo_lightning.checkpoints.folder import Checkpoint, complete_checkpoints, damaged_file
from apo_lightning.checkpoints.small_files import TENSORS
from apo_lightning.checkpoints.tensors import load_tensors
from apo_lightning.errors import ConfigError

SNAPSHOTS = "snapshots"
"""The folder in a run's `checkpoints/`."""


def snapshots_of(run_folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """The snapshots of a run, by step, and one line for each unusable one."""
    return complete_checkpoints(run_folder / "checkpoints" / SNAPSHOTS)


def load_snapshot(weights: Mapping[str, Tensor], found: Checkpoint) -> None:
    """Read a snapshot of a policy into its weights (`run_state.policy_tensors`), in place; collective.

    Raises:
        ConfigError: the content of a file has changed since it was written.
    """
    if (damaged := damaged_file(found, sorted(found.header.files))) is not None:
        raise ConfigError(
            f"snapshot {found.folder} is damaged: {damaged} has changed since it was written; move it out of "
            f"{SNAPSHOTS}/ to evaluate the others"
        )
    load_tensors(weights, found.folder / TENSORS)

"""The trained weights alone, as they were along a run: what shows when a policy lost what.

A snapshot is a checkpoint folder without optimizer and run state; none is ever deleted. The model that the run began
as is no snapshot: it is where it was.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from apo_lightning.checkpoints.folder import (
    Checkpoint,
    Header,
    Position,
    complete_checkpoints,
    damaged_file,
    flush,
    write_header,
)
from apo_lightning.checkpoints.plain import TENSORS
from apo_lightning.checkpoints.run_state import TrainingRun, policy_tensors
from apo_lightning.checkpoints.tensors import load_tensors, save_tensors
from apo_lightning.checkpoints.writing import Written
from apo_lightning.common.files import publish_folder
from apo_lightning.errors import ConfigError

SNAPSHOTS = "snapshots"
"""The folder in a run's `checkpoints/`."""


def write_weights(run: TrainingRun, written: Written) -> None:
    """Write the trained weights, each rank its part; collective."""
    save_tensors(policy_tensors(run.policy), written.folder / TENSORS, written)
    written.check()


def publish_snapshot(
    run: TrainingRun,
    partial: Path,
    position: Position,
    config: Mapping[str, object],
    files: Mapping[str, Sequence[int]],
) -> None:
    """Give the written weights, in the files of all ranks, their name and the list of them; on the first rank alone."""
    header = Header(
        position=position,
        world_size=run.ranks.world_size,
        validated_step=run.validation.last_step,
        score=None,
        config=config,
        files=files,
    )
    write_header(partial, header)
    publish_folder(partial, partial.parent / position.name)
    flush(partial.parent)


def snapshots_of(run_folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """The snapshots of a run, by step, and one line for each that cannot be used."""
    return complete_checkpoints(run_folder / "checkpoints" / SNAPSHOTS)


def load_snapshot(weights: Mapping[str, Tensor], found: Checkpoint) -> None:
    """Read a snapshot into a policy's weights, in place; collective.

    Args:
        weights: from `run_state.policy_tensors`, on any device.
        found: a snapshot of that policy.

    Raises:
        ConfigError: a file's content is not what was written.
    """
    if (damaged := damaged_file(found, sorted(found.header.files))) is not None:
        raise ConfigError(
            f"snapshot {found.folder} is damaged: {damaged} is not what was written; move it out of {SNAPSHOTS}/ to "
            "measure the others"
        )
    load_tensors(weights, found.folder / TENSORS)

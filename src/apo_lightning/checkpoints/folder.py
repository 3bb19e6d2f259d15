"""Checkpoint folders: one gets its final name when it is complete, and its manifest lists what it must contain."""

import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from apo_lightning.checkpoints.contents import SHARED, load_tensors, rank_file
from apo_lightning.common.files import flush, publish_folder, write_atomically
from apo_lightning.common.identity import (
    FORMAT,
    Files,
    Identity,
    difference_from,
    files_of,
    read_record,
    sealed,
    sha256_of_file,
)
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError

VERSION = 5
"""The version of the format of checkpoints; no other is read."""
MANIFEST = "checkpoint.json"
TENSORS = "tensors"
"""The folder of the large tensors."""
SNAPSHOTS = "snapshots"
"""The folder of the snapshots, in a run's `checkpoints/`."""


def step_name(step: int) -> str:
    """The name of the folder after so many finished rollouts; names sort like steps.

    Example:
        >>> step_name(7)
        'step_000007'
    """
    return f"step_{step:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The content of `checkpoint.json`: enough to choose or refuse a checkpoint without reading tensors."""

    step: int
    """Finished rollouts."""
    num_ranks: int
    """Ranks whose state it holds; 0: a snapshot, which holds no state but the weights."""
    validated_step: int | None
    """Finished rollouts at the last validation pass; None if there was none."""
    score: float | None
    """The held-out metric `checkpoint.best`, if a validation pass came just before; else None."""
    config: Mapping[str, Any]
    """The config of the run that wrote it."""
    identity: Identity
    """What the run read besides its settings."""
    files: Files
    """All files of the folder but this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint or a snapshot with all of its files.

    A snapshot holds only the trained weights, to study how the policy changed. None is ever deleted.
    """

    folder: Path
    header: Header


def require_seen_by_all(root: Path, rank: int) -> None:
    """Create the checkpoints' folder and check that it is the same folder for all ranks; collective.

    Raises:
        ConfigError: on all ranks, if one does not see a file that the first rank has created.
    """
    mark = root / f".first_rank_{secrets.token_hex(8)}"  # a random name: an earlier run may have left its own
    if rank == 0:
        root.mkdir(parents=True, exist_ok=True)
        mark.touch()
    name = from_all_ranks(mark.name)[0]
    blind = [r for r, sees in enumerate(from_all_ranks((root / name).is_file())) if not sees]
    if rank == 0:
        mark.unlink()
    if blind:
        raise ConfigError(
            f"rank {blind[0]} does not see the files of rank 0 in {root}, so checkpoints would be incomplete: "
            "give all ranks the same hydra.run.dir, on a disk that every machine mounts"
        )


# ------------------------------------------------------------------ writing


def partial_folder(root: Path, step: int) -> Path:
    """The folder in which a checkpoint is written before it is complete."""
    return root / f".{step_name(step)}.partial"


def sums_of_share(partial: Path, rank: int, world_size: int) -> Files:
    """This rank's share of the files, which are on disk on return."""
    names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())[rank::world_size]
    for name in names:
        flush(partial / name)
    return files_of(partial, names)


def publish(partial: Path, header: Header) -> None:
    """Write the manifest and give the complete folder its final name; all is flushed to disk on return."""
    write_atomically(partial / MANIFEST, sealed({FORMAT: VERSION, **asdict(header)}))
    publish_folder(partial, partial.with_name(step_name(header.step)))


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best one, and the remains of unfinished saves."""
    checkpoints, _ = complete_checkpoints(root)
    best = best_of(checkpoints)
    for checkpoint in checkpoints[:-keep]:
        if best is None or checkpoint.folder != best.folder:
            # Renamed first: a half-deleted folder would look like a damaged checkpoint.
            shutil.rmtree(checkpoint.folder.rename(partial_folder(root, checkpoint.header.step)))
    for leftover in root.glob(".step_*.partial"):
        shutil.rmtree(leftover)


# ------------------------------------------------------------------ reading


def complete_checkpoints(root: Path) -> tuple[list[Checkpoint], list[str]]:
    """All checkpoints in a run's `checkpoints/`, oldest first, and one line for each unusable one."""
    complete, refused = [], []
    for folder in (path for path in sorted(root.glob("step_*")) if path.is_dir()):
        try:
            complete.append(Checkpoint(folder=folder, header=read_header(folder)))
        except ConfigError as error:
            refused.append(str(error))
    return sorted(complete, key=lambda checkpoint: checkpoint.header.step), refused


def snapshots_of(run_folder: Path) -> tuple[list[Checkpoint], list[str]]:
    """The snapshots of a run, by step, and one line for each unusable one. The initial model has none."""
    return complete_checkpoints(run_folder / "checkpoints" / SNAPSHOTS)


def best_of(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The checkpoint with the highest score, the newest of equals; None if no checkpoint has a score."""
    scored = [checkpoint for checkpoint in checkpoints if checkpoint.header.score is not None]
    return max(scored, key=lambda c: (c.header.score or 0.0, c.header.step), default=None)


def read_header(folder: Path) -> Header:
    """Read the header of a checkpoint and check that the folder has its files in their sizes, and no others.

    Raises:
        ConfigError: the folder is no checkpoint, or it is not as it was written.
    """
    if not (folder / MANIFEST).is_file():
        raise ConfigError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    header = read_record(folder / MANIFEST, Header, VERSION)
    state = [SHARED, *map(rank_file, range(header.num_ranks))] if header.num_ranks else []
    if (name := folder.resolve().name) != step_name(header.step):
        raise ConfigError(f"checkpoint {folder} is of step {header.step}, which its name {name} is not: rename it")
    if lacking := [name for name in state if name not in header.files]:
        raise ConfigError(f"checkpoint {folder} is incomplete: {MANIFEST} does not list {lacking[0]}")
    if (found := difference_from(folder, header.files, reads_all=False, besides=[MANIFEST])) is not None:
        raise ConfigError(f"checkpoint {folder} is damaged: {found}; use another checkpoint")
    return header


def load_snapshot(weights: Mapping[str, Tensor], found: Checkpoint) -> None:
    """Read a snapshot of a policy into its weights (`run_state.policy_tensors`), in place; collective.

    Raises:
        ConfigError: the content of a file has changed since it was written.
    """
    if (damaged := damaged_file(found, found.header.files)) is not None:
        raise ConfigError(
            f"snapshot {found.folder} is damaged: {damaged} has changed since it was written; move it out of "
            f"{SNAPSHOTS}/ to evaluate the others"
        )
    load_tensors(weights, found.folder / TENSORS)


def damaged_file(checkpoint: Checkpoint, names: Iterable[str]) -> str | None:
    """The first of these files whose content has changed since it was written; None if all are intact."""
    files = checkpoint.header.files
    return next((name for name in names if sha256_of_file(checkpoint.folder / name) != files[name][1]), None)

"""Checkpoints on disk: a folder appears under its name when it is complete, and says what must be in it."""

import json
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apo_lightning.common.files import to_json
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError

FORMAT = 3
MANIFEST = "checkpoint.json"
DAMAGED = ".damaged"
CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """How far a run had come. Later positions compare greater."""

    step: int
    """Finished rollouts."""
    is_sampled: bool = False
    """The rollouts of the next one are there, and nothing was learnt from them."""

    @property
    def name(self) -> str:
        """The folder's name; names sort like positions.

        Example:
            >>> Position(step=7).name, Position(step=7, is_sampled=True).name
            ('step_000007', 'step_000007_sampled')
        """
        return f"step_{self.step:06d}{'_sampled' * self.is_sampled}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What `checkpoint.json` says: enough to choose a checkpoint, and to refuse one, without reading a tensor."""

    position: Position
    world_size: int
    """Ranks that wrote it."""
    validated_step: int | None
    """Finished rollouts at the last validation pass; None: there was none."""
    score: float | None
    """The watched held-out metric, where a validation pass came just before; None otherwise."""
    config: Mapping[str, Any]
    """The config of the run that wrote it."""
    files: Mapping[str, Sequence[int]]
    """Name → (size [bytes], CRC-32 of what was given to be written)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files are all there."""

    folder: Path
    header: Header


def require_seen_by_all(root: Path, rank: int) -> None:
    """Make the folder that checkpoints go to, and see that it is one and the same for all ranks; collective.

    Raises:
        ConfigError: on all ranks, where one does not find what the first has put there.
    """
    mark = root / f".first_rank_{secrets.token_hex(8)}"  # a name that an earlier run cannot have left
    if rank == 0:
        root.mkdir(parents=True, exist_ok=True)
        mark.touch()
    name = from_all_ranks(mark.name)[0]
    blind = [r for r, sees in enumerate(from_all_ranks((root / name).is_file())) if not sees]
    if rank == 0:
        mark.unlink()
    if blind:
        raise ConfigError(
            f"rank {blind[0]} does not find what the first rank puts into its {root}, so no checkpoint would be whole: "
            "give all ranks one hydra.run.dir, on a disk that every machine sees"
        )


def partial_folder(root: Path, position: Position) -> Path:
    """Where a checkpoint is written before it has its name."""
    return root / f".{position.name}.partial"


def crc32(path: Path) -> int:
    """The CRC-32 of a whole file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def write_header(partial: Path, header: Header) -> None:
    """The last file of a checkpoint; it and the folder are on the disk when this returns.

    Raises:
        RuntimeError: a file has no checksum, by which a change in it would be seen.
    """
    for path in sorted(partial.rglob("*")):
        if path.is_file() and (name := str(path.relative_to(partial))) not in header.files:
            raise RuntimeError(f"{name} has no checksum")
    content = {
        "format": FORMAT,
        "step": header.position.step,
        "is_sampled": header.position.is_sampled,
        "world_size": header.world_size,
        "validated_step": header.validated_step,
        "score": header.score,
        "config": header.config,
        "files": header.files,
    }
    path = partial / MANIFEST
    path.write_bytes(to_json(content, indent=2) + b"\n")
    for written in (path, partial):
        flush(written)


def flush(path: Path) -> None:
    """To the disk, past its caches: a rename may otherwise be there before what it names."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_header(folder: Path) -> Header:
    """The header of a checkpoint whose files are all there, in their sizes.

    Raises:
        ConfigError: it is none, or a part of one.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ConfigError(f"checkpoint {folder} has format {content['format']}, and this version reads {FORMAT}")
        header = Header(
            position=Position(step=content["step"], is_sampled=content["is_sampled"]),
            world_size=content["world_size"],
            validated_step=content["validated_step"],
            score=content["score"],
            config=content["config"],
            files=content["files"],
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"checkpoint {folder}: {MANIFEST} is damaged ({error})") from error
    for name, (size, _) in header.files.items():
        file = folder / name
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} of {size} bytes"
            raise ConfigError(f"checkpoint {folder} is incomplete: {name} {state}")
    return header


def damaged_file(checkpoint: Checkpoint, names: Iterable[str]) -> str | None:
    """The first of these files whose content is not what was written; None: all are sound."""
    for name in names:
        if crc32(checkpoint.folder / name) != checkpoint.header.files[name][1]:
            return name
    return None


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint, so that the next search passes it over, and nothing is deleted."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def complete_checkpoints(root: Path) -> tuple[list[Checkpoint], list[str]]:
    """All checkpoints in a run's `checkpoints/`, oldest first, and one line for each that cannot be used."""
    complete, refused = [], []
    for folder in sorted(root.glob("step_*")) if root.is_dir() else []:
        if not folder.is_dir() or folder.name.endswith((DAMAGED, ".superseded")):
            continue
        try:
            complete.append(Checkpoint(folder=folder, header=read_header(folder)))
        except ConfigError as error:
            refused.append(str(error))
    return sorted(complete, key=lambda checkpoint: checkpoint.header.position), refused


def best_of(checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    """The checkpoint with the highest score, of equals the newest; None where no checkpoint has a score."""
    scored = [checkpoint for checkpoint in checkpoints if checkpoint.header.score is not None]
    return max(scored, key=lambda c: (c.header.score or 0.0, c.header.position), default=None)


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best one, and what unfinished saves left behind."""
    checkpoints, _ = complete_checkpoints(root)
    best = best_of(checkpoints)
    for checkpoint in checkpoints[:-keep]:
        if best is None or checkpoint.folder != best.folder:
            # Under another name first: a folder half deleted would look like a damaged checkpoint.
            doomed = checkpoint.folder.rename(checkpoint.folder.with_name(f".{checkpoint.folder.name}.partial"))
            shutil.rmtree(doomed)
    for leftover in root.glob(".step_*.partial"):
        shutil.rmtree(leftover)

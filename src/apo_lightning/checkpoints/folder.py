"""Checkpoint folders: one gets its final name when it is complete, and its manifest lists what it must contain."""

import json
import os
import secrets
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from apo_lightning.common.files import publish_folder, to_json
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError

FORMAT = 4
MANIFEST = "checkpoint.json"
DAMAGED = ".damaged"
CHUNK_BYTES = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Position:
    """The progress of a run. Later positions compare greater."""

    step: int
    """Finished rollouts."""
    is_sampled: bool = False
    """True if the next step's rollouts are sampled but not yet trained on."""

    @property
    def name(self) -> str:
        """The name of the folder; names sort like positions.

        Example:
            >>> Position(step=7).name, Position(step=7, is_sampled=True).name
            ('step_000007', 'step_000007_sampled')
        """
        return f"step_{self.step:06d}{'_sampled' * self.is_sampled}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The content of `checkpoint.json`: enough to choose or refuse a checkpoint without reading tensors."""

    position: Position
    world_size: int
    """Number of ranks that wrote it."""
    validated_step: int | None
    """Finished rollouts at the last validation pass; None if there was none."""
    score: float | None
    """The held-out metric `checkpoint.best`, if a validation pass came just before; else None."""
    config: Mapping[str, Any]
    """The config of the run that wrote it."""
    files: Mapping[str, Sequence[int]]
    """Name → (size [bytes], CRC-32 of the bytes that were to be written)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint with all of its files."""

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


def partial_folder(root: Path, position: Position) -> Path:
    """The folder in which a checkpoint is written before it is complete."""
    return root / f".{position.name}.partial"


def crc32(path: Path) -> int:
    """The CRC-32 of a whole file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value


def publish(partial: Path, header: Header) -> None:
    """Write the header and give the complete folder its final name; both are flushed to disk on return."""
    write_header(partial, header)
    publish_folder(partial, partial.with_name(header.position.name))
    flush(partial.parent)


_HEADER_KEYS = [field.name for field in fields(Header) if field.name != "position"]


def write_header(partial: Path, header: Header) -> None:
    """Write the last file of a checkpoint; it and the folder are flushed to disk on return.

    Raises:
        RuntimeError: a file has no checksum, so that damage would go unnoticed.
    """
    for path in sorted(partial.rglob("*")):
        if path.is_file() and (name := str(path.relative_to(partial))) not in header.files:
            raise RuntimeError(f"{name} has no checksum")
    content = {"format": FORMAT, **asdict(header.position), **{key: getattr(header, key) for key in _HEADER_KEYS}}
    path = partial / MANIFEST
    path.write_bytes(to_json(content, indent=2) + b"\n")
    for written in (path, partial):
        flush(written)


def flush(path: Path) -> None:
    """Flush a file or folder to disk; otherwise a rename may reach the disk before the content."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_header(folder: Path) -> Header:
    """Read the header of a checkpoint and check that all files exist in their sizes.

    Raises:
        ConfigError: the folder is no checkpoint, or it is incomplete.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise ConfigError(f"checkpoint {folder} has format {content['format']}, but this version reads {FORMAT}")
        if not isinstance(content["step"], int):
            raise TypeError(f"step is {content['step']!r:.60}")
        header = Header(
            position=Position(step=content["step"], is_sampled=content["is_sampled"]),
            **{key: content[key] for key in _HEADER_KEYS},
        )
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"checkpoint {folder}: {MANIFEST} is damaged ({error})") from error
    for name, (size, _) in header.files.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"checkpoint {folder}: {name!r:.200} leads out of it; use another checkpoint")
        found = file.stat().st_size if file.is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} of {size} bytes"
            raise ConfigError(f"checkpoint {folder} is incomplete: {name} {state}")
    return header


def damaged_file(checkpoint: Checkpoint, names: Iterable[str]) -> str | None:
    """The first of these files whose content has changed since it was written; None if all are intact."""
    for name in names:
        if crc32(checkpoint.folder / name) != checkpoint.header.files[name][1]:
            return name
    return None


def set_aside(folder: Path) -> Path:
    """Rename a damaged checkpoint so that the next search ignores it; nothing is deleted."""
    aside = folder.with_name(folder.name + DAMAGED)
    shutil.rmtree(aside, ignore_errors=True)
    return folder.rename(aside)


def complete_checkpoints(root: Path) -> tuple[list[Checkpoint], list[str]]:
    """All checkpoints in a run's `checkpoints/`, oldest first, and one line for each unusable one."""
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
    """The checkpoint with the highest score, the newest of equals; None if no checkpoint has a score."""
    scored = [checkpoint for checkpoint in checkpoints if checkpoint.header.score is not None]
    return max(scored, key=lambda c: (c.header.score or 0.0, c.header.position), default=None)


def prune(root: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the best one, and the remains of unfinished saves."""
    checkpoints, _ = complete_checkpoints(root)
    best = best_of(checkpoints)
    for checkpoint in checkpoints[:-keep]:
        if best is None or checkpoint.folder != best.folder:
            # Renamed first: a half-deleted folder would look like a damaged checkpoint.
            doomed = checkpoint.folder.rename(checkpoint.folder.with_name(f".{checkpoint.folder.name}.partial"))
            shutil.rmtree(doomed)
    for leftover in root.glob(".step_*.partial"):
        shutil.rmtree(leftover)

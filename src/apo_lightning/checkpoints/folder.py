"""Checkpoint folders: one gets its final name when it is complete, and its manifest lists what it must contain."""

import json
import secrets
import shutil
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from torch import Tensor

from apo_lightning.checkpoints.contents import load_tensors
from apo_lightning.common.console import say
from apo_lightning.common.files import flush, publish_folder, to_json, write_atomically
from apo_lightning.distributed.gathering import from_all_ranks
from apo_lightning.errors import ConfigError

FORMAT = 4
CODE = "the code of"
"""How the name of a fingerprint of a user's file begins."""
MANIFEST = "checkpoint.json"
TENSORS = "tensors"
"""The folder of the large tensors."""
SNAPSHOTS = "snapshots"
"""The folder of the snapshots, in a run's `checkpoints/`."""
CHUNK_BYTES = 1 << 24


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
    validated_step: int | None
    """Finished rollouts at the last validation pass; None if there was none."""
    score: float | None
    """The held-out metric `checkpoint.best`, if a validation pass came just before; else None."""
    config: Mapping[str, Any]
    """The config of the run that wrote it."""
    files: Mapping[str, Sequence[int]]
    """Name → (size [bytes], CRC-32)."""
    sources: Mapping[str, str] | None = None
    """What the run read besides its settings, as fingerprints; None: written by a version that kept none."""


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


def checksums(partial: Path, rank: int, world_size: int) -> dict[str, tuple[int, int]]:
    """Name → (size, CRC-32) of this rank's share of the files, which are on disk on return."""
    names = sorted(str(path.relative_to(partial)) for path in partial.rglob("*") if path.is_file())
    found = {}
    for name in names[rank::world_size]:
        flush(partial / name)
        found[name] = (partial / name).stat().st_size, crc32(partial / name)
    return found


def publish(partial: Path, header: Header) -> None:
    """Write the manifest and give the complete folder its final name; all is flushed to disk on return."""
    content = {"format": FORMAT, **asdict(header)}
    write_atomically(partial / MANIFEST, to_json(content, indent=2) + b"\n")
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
    """Read the header of a checkpoint and check that all files exist in their sizes.

    Raises:
        ConfigError: the folder is no checkpoint, or it is incomplete.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise ConfigError(f"{folder} is no checkpoint: it has no {MANIFEST}")
    try:
        content = json.loads(path.read_bytes())
        found = content["format"]
        content.setdefault("sources", None)
        header = Header(**{field.name: content[field.name] for field in fields(Header)}) if found == FORMAT else None
        if header is not None and not isinstance(header.step, int):
            raise TypeError(f"step is {header.step!r:.60}")
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"checkpoint {folder}: {MANIFEST} is damaged ({error})") from error
    if header is None:
        raise ConfigError(f"checkpoint {folder} has format {found}, but this version reads {FORMAT}")
    for name, (size, _) in header.files.items():
        file = folder / name
        if not file.resolve().is_relative_to(folder.resolve()):
            raise ConfigError(f"checkpoint {folder}: {name!r:.200} leads out of it; use another checkpoint")
        num_bytes = file.stat().st_size if file.is_file() else None
        if num_bytes != size:
            state = "is missing" if num_bytes is None else f"has {num_bytes} of {size} bytes"
            raise ConfigError(f"checkpoint {folder} is incomplete: {name} {state}")
    return header


def require_same_sources(checkpoint: Checkpoint, sources: Mapping[str, str]) -> None:
    """Raise `ConfigError` if a content that a checkpoint's run began with has changed, and name it.

    A content without a fingerprint in the checkpoint is not compared; a line names it. Code may change, since a run may
    be resumed to mend it; a line says so.
    """
    saved = checkpoint.header.sources or {}
    if unknown := [name for name in sources if name not in saved]:
        say(f"{checkpoint.folder.name} has no fingerprints of {' and '.join(unknown)}, which are not compared")
    changed = [name for name in sources if saved.get(name, sources[name]) != sources[name]]
    for name in (name for name in changed if name.startswith(CODE)):
        say(f"{name} has changed since {checkpoint.folder.name}: the steps from here on are those of the new code")
    if changed := [name for name in changed if not name.startswith(CODE)]:
        raise ConfigError(
            f"checkpoint {checkpoint.folder}: {' and '.join(changed)} changed after its run began, under the same "
            "settings: restore what was changed, or start a new run"
        )


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


def damaged_file(checkpoint: Checkpoint, names: Iterable[str]) -> str | None:
    """The first of these files whose content has changed since it was written; None if all are intact."""
    sums = checkpoint.header.files
    return next((name for name in names if crc32(checkpoint.folder / name) != sums[name][1]), None)


def crc32(path: Path) -> int:
    """The CRC-32 of a whole file."""
    value = 0
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            value = zlib.crc32(chunk, value)
    return value

"""The files of a checkpoint, written with checksums; the small ones are plain data that runs no code when read."""

import io
import os
import pickle
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from apo_lightning.errors import ConfigError
from apo_lightning.types import Completion, Prompt, Rollouts, SamplingRounds, Verdict

TENSORS = "tensors"
"""The folder of the large tensors."""
SHARED = "shared.pt"
"""The file of the state that is equal on all ranks."""


class SequentialFile(io.BufferedWriter):
    """A file that is written from beginning to end, with its size and checksum; closing it flushes it to disk."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.FileIO(path, "wb"))
        self.num_bytes = 0
        self.crc32 = 0
        """Checksum of all bytes passed to `write` so far."""

    def write(self, data: Any) -> int:
        """Append bytes; returns their number."""
        self.crc32 = zlib.crc32(data, self.crc32)
        num_bytes = super().write(data)
        self.num_bytes += num_bytes
        return num_bytes

    def seek(self, offset: int, whence: int = 0) -> int:
        """Not possible: rewritten bytes would invalidate the checksum. safetensors and `torch.save` do not seek."""
        raise io.UnsupportedOperation("seek")

    def close(self) -> None:
        """Flush the file to disk and close it; does nothing if it is closed."""
        if self.closed:
            return
        try:
            self.flush()
            os.fsync(self.fileno())
        finally:
            super().close()


class Written:
    """The files that one rank has written into the folder of a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, list[int]] = {}
        """Name in the folder → [size in bytes, CRC-32], for files that are flushed to disk."""

    @contextmanager
    def open(self, path: Path) -> Iterator[SequentialFile]:
        """Open a file for writing; it is listed in `files` once it is flushed to disk."""
        with SequentialFile(path) as file:
            yield file
        self.files[str(path.relative_to(self.folder))] = [file.num_bytes, file.crc32]


def rank_file(rank: int) -> str:
    """The name of the file with the state of one rank."""
    return f"rank_{rank:05d}.pt"


def save_plain(content: Any, path: Path, written: Written) -> None:
    """Save numbers, strings, lists, dicts and tensors."""
    with written.open(path) as file:
        torch.save(content, file)


def load_plain(path: Path) -> Any:
    """Load from `save_plain`; raises `ConfigError` for a file with more than plain data, and runs nothing of it."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{path} holds more than plain data, so it is not read: resume another checkpoint") from error


def rollouts_to_plain(rollouts: Rollouts) -> dict[str, Any]:
    """Rollouts as plain data, without the data set's columns: their values may be of any type."""

    def stripped(part: Rollouts) -> Rollouts:
        return replace(part, prompts=tuple(replace(prompt, columns={}) for prompt in part.prompts))

    if rollouts.rounds is not None:
        rollouts = replace(rollouts, rounds=replace(rollouts.rounds, first=stripped(rollouts.rounds.first)))
    return asdict(stripped(rollouts))


def rollouts_from_plain(plain: Mapping[str, Any]) -> Rollouts:
    """Rebuild rollouts from `rollouts_to_plain` of them."""
    rounds = plain.get("rounds")
    if rounds is not None:
        rounds = SamplingRounds(**{**rounds, "first": rollouts_from_plain(rounds["first"])})
    records = {
        "rounds": rounds,
        "prompts": tuple(Prompt(**prompt) for prompt in plain["prompts"]),
        "completions": tuple(Completion(**completion) for completion in plain["completions"]),
        "verdicts": tuple(Verdict(**verdict) for verdict in plain["verdicts"]),
    }
    return Rollouts(**{**plain, **records})

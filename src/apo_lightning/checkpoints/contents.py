"""What a checkpoint contains: large tensors, and everything else as plain data; reading either runs no code.

Tensors are written in parts by all ranks and read by any number of ranks: torch.distributed.checkpoint reshards them as
the reader needs. Its own format has an index that is unpickled, which can run code; safetensors contains only numbers.
"""

import contextlib
import pickle
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor

from apo_lightning.common.process_group import num_processes
from apo_lightning.errors import ConfigError

# ------------------------------------------------------------------ large tensors

BYTES_PER_FILE = 256 * 2**20
"""Maximal size of a file. Each is assembled in memory twice, so one file for all tensors would need two copies."""


def save_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Write tensors, unsharded or sharded, on any device, to a folder that all ranks see; collective.

    A shard is written by its owner, a replicated tensor once.
    """
    world_size = num_processes()
    files = file_numbers({name: tensor.nbytes // world_size for name, tensor in tensors.items()}, BYTES_PER_FILE)
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    with _plain_errors():
        dcp.save(dict(tensors), storage_writer=writer)


def load_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read into these tensors, unsharded or shards of any layout; collective.

    Raises:
        RuntimeError: a name is missing.
        ValueError: a shape differs.
    """
    with _plain_errors():
        dcp.load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    """Raise the first error of the ranks itself: torch wraps them in an exception that is no `Exception`."""
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # that there is a single process
        try:
            yield
        except CheckpointException as error:
            raise next(iter(error.failures.values()))[0] from None


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether this rank's parts of the tensors have neither NaN nor inf."""
    parts = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return all(bool(part.isfinite().all()) for part in parts)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name → unsharded shape of each tensor in the folder; reads only the files' headers."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    return {name: tuple(entry.size) for name, entry in metadata.state_dict_metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]


def file_numbers(num_bytes: Mapping[str, int], bytes_per_file: int) -> dict[str, int]:
    """Assign tensors to files, filling one file after the other; an oversized tensor gets its own file.

    Example:
        >>> file_numbers({"a": 3, "b": 3, "c": 9, "d": 1}, bytes_per_file=8)
        {'a': 1, 'b': 1, 'c': 2, 'd': 3}
    """
    numbers, number, filled = {}, 1, 0
    for name, size in num_bytes.items():
        if filled and filled + size > bytes_per_file:
            number, filled = number + 1, 0
        numbers[name], filled = number, filled + size
    return numbers


# ------------------------------------------------------------------ plain data

SHARED = "shared.pt"
"""The file of the state that is equal on all ranks."""


def rank_file(rank: int) -> str:
    """The name of the file with the state of one rank."""
    return f"rank_{rank:05d}.pt"


def save_plain(content: Any, path: Path) -> None:
    """Save numbers, strings, lists, dicts and tensors."""
    with path.open("wb") as file:  # given a path, torch reports a full disk as an error of its zip writer
        torch.save(content, file)


def load_plain(path: Path) -> Any:
    """Load from `save_plain`; raises `ConfigError` for a file with more than plain data, and runs nothing of it."""
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except pickle.UnpicklingError as error:
        raise ConfigError(f"{path} holds more than plain data, so it is not read: resume another checkpoint") from error

"""The large tensors of a checkpoint: safetensors files, written in parts by all ranks and read by any number of ranks.

torch.distributed.checkpoint writes and reads them and reshards them as the reader needs. Its own format has an index
that is unpickled, which can run code; safetensors contains only numbers.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.tensor import DTensor

from apo_lightning.checkpoints.small_files import SequentialFile, Written
from apo_lightning.common.process_group import num_processes

BYTES_PER_FILE = 256 * 2**20
"""Maximal size of a file. Each is assembled in memory twice, so one file for all tensors would need two copies."""


def save_tensors(tensors: Mapping[str, Tensor], folder: Path, written: Written) -> None:
    """Write tensors, unsharded or sharded, on any device, to a folder that all ranks see; collective.

    A shard is written by its owner, a replicated tensor once. `written` records this rank's files.
    """
    world_size = num_processes()
    files = file_numbers({name: tensor.nbytes // world_size for name, tensor in tensors.items()}, BYTES_PER_FILE)
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    # Files that are not opened through it would have no checksum, and the checkpoint would be refused.
    writer.fs = _Listing(written)
    with _no_single_process_warning():
        dcp.save(dict(tensors), storage_writer=writer)


def load_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read into these tensors, unsharded or shards of any layout; collective.

    Raises:
        CheckpointException: a name is missing, or a shape differs.
    """
    with _no_single_process_warning():
        dcp.load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))


def are_finite(tensors: Iterable[Tensor]) -> bool:
    """Whether this rank's parts of the tensors have neither NaN nor inf."""
    parts = (tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors)
    return all(bool(part.isfinite().all()) for part in parts)


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name → unsharded shape of each tensor in the folder; reads only the files' headers."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    return {name: tuple(entry.size) for name, entry in metadata.state_dict_metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]


class _Listing(FileSystem):
    """A file system that records each written file with its checksum."""

    def __init__(self, written: Written) -> None:
        self.written = written

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[SequentialFile]:
        assert mode == "wb", f"{path} is opened with {mode}"
        with self.written.open(Path(path)) as file:
            yield file


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


@contextmanager
def _no_single_process_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield

"""The large tensors of a checkpoint: safetensors files, written in parts by all ranks and read by any number of ranks.

torch.distributed.checkpoint writes and reads them and reshards them as the reader needs. Its own format has an index
that is unpickled, which can run code; safetensors contains only numbers.
"""

import io
import os
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch.distributed
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.filesystem import FileSystem

from apo_lightning.checkpoints.writing import Written
from apo_lightning.common.process_group import has_process_group, num_processes

BYTES_PER_FILE = 256 * 2**20
"""Maximal size of a file. Each is assembled in memory twice, so one file for all tensors would need two copies."""


def save_tensors(tensors: Mapping[str, Tensor], folder: Path, written: Written) -> None:
    """Write all tensors; collective. A shard is written by its owner, a replicated tensor once.

    Args:
        tensors: unsharded or sharded, on any device.
        folder: visible to all ranks.
        written: records this rank's files.
    """
    with _no_single_process_warning():
        dcp.save(dict(tensors), storage_writer=_writer(tensors, folder, written))


def save_tensors_later(
    tensors: Mapping[str, Tensor], folder: Path, written: Written, group: ProcessGroup | None
) -> Future[object]:
    """Copy the tensors to host memory and write them in a background thread.

    Args:
        tensors: unsharded or sharded, on any device.
        folder: visible to all ranks.
        written: records this rank's files; complete once the future is done.
        group: from `background_group`.
    """
    with _no_single_process_warning():
        future = dcp.async_save(dict(tensors), storage_writer=_writer(tensors, folder, written), process_group=group)
        return cast("Future[object]", future)


def background_group() -> ProcessGroup | None:
    """Create a process group for the background writers; collective. None if the trainer has no process group.

    In the trainer's group the writers' collectives would mix with those of the training, in a different order on each
    rank; and on GPUs it has only NCCL, which cannot send host memory.
    """
    if not has_process_group():
        return None
    return cast("ProcessGroup", torch.distributed.new_group(backend="gloo"))


def load_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read into these tensors, unsharded or shards of any layout; collective.

    Raises:
        CheckpointException: a name is missing, or a shape differs.
    """
    with _no_single_process_warning():
        dcp.load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name → unsharded shape of each tensor in the folder; reads only the files' headers."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    return {name: tuple(entry.size) for name, entry in metadata.state_dict_metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]


def _writer(tensors: Mapping[str, Tensor], folder: Path, written: Written) -> "_Writer":
    world_size = num_processes()
    files = file_numbers({name: tensor.nbytes // world_size for name, tensor in tensors.items()}, BYTES_PER_FILE)
    writer = _Writer(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    # Files that are not opened through it would have no checksum, and the checkpoint would be refused.
    writer.fs = _Listing(written)
    return writer


class _Writer(HuggingFaceStorageWriter):
    """A writer that uses the GPU of the thread that created it, in any thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Set the GPU; torch calls this method first in the writing thread.

        A new thread starts on GPU 0, where a stream or a pinned copy would create a context of hundreds of MiB per
        rank. torch 2.13 happens to need neither once the tensors are staged.
        """
        if self._device is not None:
            torch.cuda.set_device(self._device)
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)


class _Listing(FileSystem):
    """A file system that records each written file with its checksum."""

    def __init__(self, written: Written) -> None:
        self.written = written

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", f"{path} is opened with {mode}"
        with self.written.open(Path(path)) as file:
            yield cast("io.IOBase", file)


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

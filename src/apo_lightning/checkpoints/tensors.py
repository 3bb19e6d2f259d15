"""The large tensors of a checkpoint as safetensors files, a part from every rank, readable by any number of them.

torch.distributed.checkpoint writes and reads them: shards are put together, and apart again, as the reader needs.
Its own format keeps an index that is unpickled, and so may run code; safetensors holds nothing but numbers.
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
"""Size of one rank's files. Each is put together in memory, twice: one file for all would take two copies of it."""


def save_tensors(tensors: Mapping[str, Tensor], folder: Path, written: Written) -> None:
    """Write all tensors; collective. A shard is written by its owner, a replicated tensor once.

    Args:
        tensors: whole or sharded, on any device.
        folder: seen by all ranks.
        written: gets this rank's files.
    """
    with _single_process_is_meant():
        dcp.save(dict(tensors), storage_writer=_writer(tensors, folder, written))


def save_tensors_later(
    tensors: Mapping[str, Tensor], folder: Path, written: Written, group: ProcessGroup | None
) -> Future[object]:
    """Write the tensors from a thread, as they are now: they are copied to host memory first.

    Args:
        tensors: whole or sharded, on any device.
        folder: seen by all ranks.
        written: gets this rank's files, all of them once the future is done.
        group: from `background_group`.
    """
    with _single_process_is_meant():
        future = dcp.async_save(dict(tensors), storage_writer=_writer(tensors, folder, written), process_group=group)
        return cast("Future[object]", future)


def background_group() -> ProcessGroup | None:
    """The process group of the writers, beside the trainer's; collective. None where the trainer has none.

    In the trainer's own group their words would come between those of the training, in another order on each rank; and
    one of NCCL alone, as GPUs have it, carries nothing that lies in host memory.
    """
    if not has_process_group():
        return None
    return cast("ProcessGroup", torch.distributed.new_group(backend="gloo"))


def load_tensors(tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Read into these tensors, whole ones or shards of any layout; collective.

    Raises:
        CheckpointException: a name is missing, or a shape differs.
    """
    with _single_process_is_meant():
        dcp.load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(folder)))


def tensor_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Name and whole shape of everything in the folder; reads the files' heads alone."""
    metadata = HuggingFaceStorageReader(str(folder)).read_metadata()
    return {name: tuple(entry.size) for name, entry in metadata.state_dict_metadata.items()}  # pyright: ignore[reportAttributeAccessIssue]


def _writer(tensors: Mapping[str, Tensor], folder: Path, written: Written) -> "_Writer":
    world_size = num_processes()
    files = file_numbers({name: tensor.nbytes // world_size for name, tensor in tensors.items()}, BYTES_PER_FILE)
    writer = _Writer(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    # Were the files not opened through it, the checkpoint would have some without a checksum and be refused.
    writer.fs = _Listing(written)
    return writer


class _Writer(HuggingFaceStorageWriter):
    """A writer whose CUDA calls, from whichever thread, are for the GPU of the thread that made it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """The first that torch calls in the thread that writes.

        The device of a new thread is GPU 0, where a stream or a pinned copy would open a context of hundreds of MiB
        for each rank. torch 2.13 happens to need neither once the tensors are staged: gloo carries host memory, and
        `FileSystemWriter.stage` turns the loader with a stream off.
        """
        if self._device is not None:
            torch.cuda.set_device(self._device)
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)


class _Listing(FileSystem):
    """A disk on which what is written is listed with its checksum."""

    def __init__(self, written: Written) -> None:
        self.written = written

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb", f"{path} is opened with {mode}"
        with self.written.open(Path(path)) as file:
            yield cast("io.IOBase", file)


def file_numbers(num_bytes: Mapping[str, int], bytes_per_file: int) -> dict[str, int]:
    """In which file each tensor goes, filled one after the other; a tensor that is too large has one of its own.

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
def _single_process_is_meant() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield

"""The files of a checkpoint: the checksum is taken of the bytes on their way to the disk, and nothing is read back."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SequentialFile:
    """A file that is written from its beginning to its end, and what it must hold.

    It has no `seek`, on purpose: a writer that went back would leave other bytes than the checksum is of. Neither
    safetensors' files nor `torch.save`, whose archive has its index at the end, go back.

    Args:
        path: in a folder that exists; what stands there is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.num_bytes = 0
        self.crc32 = 0
        """Of all bytes given to `write` so far."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; returns their number."""
        self.crc32 = zlib.crc32(data, self.crc32)
        num_bytes = self._file.write(data)
        self.num_bytes += num_bytes
        return num_bytes

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.num_bytes

    def flush(self) -> None:
        """Leave nothing in this process."""
        self._file.flush()

    def fileno(self) -> int:
        """For `os.fsync`, which knows nothing of bytes that are still in this process: there are none."""
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        """The file is on the disk, past its caches, when this returns; closed again, nothing happens."""
        if not self._file.closed:
            with self._file:
                os.fsync(self.fileno())


class Written:
    """The files that one rank has written of a checkpoint.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, list[int]] = {}
        """Name in the folder → [size in bytes, CRC-32], of those that are on the disk."""

    @contextmanager
    def open(self, path: Path) -> Iterator[SequentialFile]:
        """Write a file; it is listed once it is on the disk."""
        file = SequentialFile(path)
        try:
            yield file
        finally:
            file.close()
        self.files[str(path.relative_to(self.folder))] = [file.num_bytes, file.crc32]

    def check(self) -> None:
        """See that the files are there, in their sizes, before checkpoints are deleted in favour of this one.

        Raises:
            OSError: one is not.
        """
        for name, (num_bytes, _) in self.files.items():
            found = (self.folder / name).stat().st_size
            if found != num_bytes:
                raise OSError(f"{name} has {found} of {num_bytes} bytes")

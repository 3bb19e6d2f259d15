"""Writing the files of a checkpoint with checksums of the bytes to be written; nothing is read back."""

import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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

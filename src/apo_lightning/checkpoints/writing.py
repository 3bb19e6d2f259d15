"""Writing the files of a checkpoint with checksums of the bytes to be written; nothing is read back."""

import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class SequentialFile:
    """A file that is written sequentially, with its size and checksum.

    It has no `seek`, since rewriting earlier bytes would invalidate the checksum. Neither safetensors nor `torch.save`
    seeks.

    Args:
        path: in an existing folder; an existing file is replaced.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")
        self.num_bytes = 0
        self.crc32 = 0
        """Checksum of all bytes passed to `write` so far."""

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append bytes; returns their number."""
        self.crc32 = zlib.crc32(data, self.crc32)
        num_bytes = self._file.write(data)
        self.num_bytes += num_bytes
        return num_bytes

    def tell(self) -> int:
        """The position of the next byte."""
        return self.num_bytes

    def flush(self) -> None:
        """Flush the buffer of this process."""
        self._file.flush()

    def fileno(self) -> int:
        """The descriptor, for `os.fsync`; flushes first, since `os.fsync` does not see buffered bytes."""
        self._file.flush()
        return self._file.fileno()

    def close(self) -> None:
        """Flush the file to disk and close it; does nothing if it is closed."""
        if not self._file.closed:
            with self._file:
                os.fsync(self.fileno())


class Written:
    """The files of a checkpoint that one rank has written.

    Args:
        folder: of the checkpoint.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[str, list[int]] = {}
        """Name in the folder → [size in bytes, CRC-32], for files that are flushed to disk."""

    @contextmanager
    def open(self, path: Path) -> Iterator[SequentialFile]:
        """Open a file for writing; it is listed in `files` once it is flushed to disk."""
        file = SequentialFile(path)
        try:
            yield file
        finally:
            file.close()
        self.files[str(path.relative_to(self.folder))] = [file.num_bytes, file.crc32]

    def check(self) -> None:
        """Check that the files exist in their sizes, before older checkpoints are deleted.

        Raises:
            OSError: a file is missing or has another size.
        """
        for name, (num_bytes, _) in self.files.items():
            found = (self.folder / name).stat().st_size
            if found != num_bytes:
                raise OSError(f"{name} has {found} of {num_bytes} bytes")

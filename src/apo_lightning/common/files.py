"""Writing files and folders that are whole after a crash, JSON, and YAML of others."""

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import yaml

from apo_lightning.errors import ConfigError, in_brief, system_error

_logger = logging.getLogger(__name__)


PARTIAL, SUPERSEDED = ".partial", ".superseded"
"""How the hidden names end of what is being written, and of what it replaces."""
_unflushed: set[Path] = set()
"""Files of this process that are whole, and perhaps not on disk yet."""


def write_atomically(path: Path, content: bytes, *, flushes: bool = True) -> None:
    """Write `path` so that readers, and a crash, see either the old content or the new one.

    It is on disk on return or, without `flushes`, after the next `flush_written`. Several processes may write the same
    content at once.
    """
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}{PARTIAL}")
        partial.unlink(missing_ok=True)  # in a folder from elsewhere it may be a link to any file
        try:
            partial.write_bytes(content)
            if flushes:
                flush(partial)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        if flushes:
            flush(path.parent)
        else:
            _unflushed.add(path)


def append(path: Path, content: bytes) -> None:
    """Write all of `content` at the end of a file; it is on disk after the next `flush_written`."""
    with naming(path), path.open("ab") as file:
        file.write(content)
    _unflushed.add(path)


def flush_written() -> None:
    """Flush to disk what this process has written and not flushed; files that were removed meanwhile are left out."""
    for path in sorted({*_unflushed, *(path.parent for path in _unflushed)}):
        with contextlib.suppress(FileNotFoundError):
            flush(path)
    _unflushed.clear()


def flush(path: Path) -> None:
    """Flush a file or folder to disk; otherwise a rename may reach the disk before the content."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:  # of a file system that flushes no folders
                raise
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system in the block name `path`, also one from Rust (safetensors, tokenizers)."""
    try:
        yield
    except Exception as error:
        if number := system_error(error):
            raise OSError(number, os.strerror(number), str(path)) from error
        raise


def publish_folder(partial: Path, final: Path) -> None:
    """Rename the finished folder `partial` to `final`, replacing an existing folder; all of it is on disk on return."""
    for path in (*partial.rglob("*"), partial):
        flush(path)
    superseded = final.with_name(f".{final.name}{SUPERSEDED}")
    shutil.rmtree(superseded, ignore_errors=True)
    if final.exists():
        # A rename cannot replace a non-empty folder.
        final.rename(superseded)
    partial.rename(final)
    flush(final.parent)
    shutil.rmtree(superseded, ignore_errors=True)


def remove_remains(*folders: Path) -> None:
    """Remove what writers that were killed have left in these folders, which no other process writes to."""
    for path in (path for folder in folders for path in folder.glob(".*") if path.suffix in (PARTIAL, SUPERSEDED)):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def take_lock(descriptor: int, refusal: str) -> None:
    """Lock an open file for this process until the file is closed, if only by the process's death.

    Raises `ConfigError` with the text `refusal` if another process holds it. For a file system without locks it warns.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(refusal) from None
    except OSError as error:
        _logger.warning("no lock here (%s): a second process that writes to this folder is not refused", error.strerror)


LOCK = ".lock"


@contextlib.contextmanager
def folder_locked(folder: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of a folder, made if need be; raises `ConfigError` as above. A lock dies with its process."""
    path = folder / LOCK
    file = _locked(path, refusal)
    # A process that a reward forks would hold the lock after the death of this one.
    os.register_at_fork(after_in_child=file.close)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            if not file.closed and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                path.unlink()
        file.close()


def _locked(path: Path, refusal: str) -> IO[str]:
    """Open and lock a file that is still at `path` then: a lock on one that its holder has removed keeps nobody out."""
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
            # NOFOLLOW: a link to nowhere would be tried for ever.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            file = opened.enter_context(os.fdopen(descriptor))
            take_lock(descriptor, refusal)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                opened.pop_all()
                return file


def read_yaml_text(path: Path) -> str:
    """The text of a YAML file that Hydra wrote, here or elsewhere.

    Raises:
        ConfigError: it cannot be read, or has an alias. Hydra writes none, and ten lines of them make a billion values.
    """
    try:
        if not path.is_file():
            raise ValueError("it is no file")  # a pipe would be waited for
        text = path.read_text(encoding="utf-8")
        has_alias = any(isinstance(token, yaml.AliasToken) for token in yaml.scan(text))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot be read ({in_brief(error)})") from error
    if has_alias:
        raise ConfigError(f"{path}: has YAML aliases, which Hydra does not write: not a file of a run")
    return text


def to_json(record: Any, *, indent: int | None = None) -> bytes:
    r"""UTF-8 JSON in the order of the record's keys, text unescaped, non-finite numbers as null.

    Python's default for these is NaN, which is not JSON. A lone surrogate, which UTF-8 cannot encode, becomes the
    escape `\udxxx`.

    Example:
        >>> to_json({"π": 3.5, "gap": float("nan")}).decode()
        '{"π": 3.5, "gap": null}'
    """
    text = json.dumps(_finite(record), ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", errors="backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value

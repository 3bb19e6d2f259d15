"""Writing files and folders atomically, JSON, and YAML of others."""

import contextlib
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

from apo_lightning.errors import ConfigError, in_brief

_logger = logging.getLogger(__name__)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `path` so that readers, and a crash, see either the old content or the new one.

    Several processes may write the same content at once.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    partial.unlink(missing_ok=True)  # in a folder from elsewhere it may be a link to any file
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        error.filename = str(path)  # a full disk is reported without it
        partial.unlink(missing_ok=True)
        raise


def publish_folder(partial: Path, final: Path) -> None:
    """Rename the finished folder `partial` to `final`, replacing an existing folder."""
    superseded = final.with_name(f".{final.name}.superseded")
    shutil.rmtree(superseded, ignore_errors=True)
    if final.exists():
        # A rename cannot replace a non-empty folder.
        final.rename(superseded)
    partial.rename(final)
    shutil.rmtree(superseded, ignore_errors=True)


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

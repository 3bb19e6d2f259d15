"""Writing files that are either whole or not there."""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Write `path` so that a reader, or a crash, sees the old content or the new, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def write_once(path: Path, content: bytes) -> None:
    """Write `path`, unless it holds `content` already. Several processes may write the same content at once.

    Each writes to a name that no other has, then renames: a reader sees all of the content, whoever is killed.
    """
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        partial.write_bytes(content)
        partial.replace(path)


def publish_folder(partial: Path, final: Path) -> None:
    """Give the finished folder `partial` its name `final`, in place of what stood there."""
    superseded = final.with_name(f".{final.name}.superseded")
    shutil.rmtree(superseded, ignore_errors=True)
    if final.exists():
        # A rename cannot replace a folder that is not empty.
        final.rename(superseded)
    partial.rename(final)
    shutil.rmtree(superseded, ignore_errors=True)


def to_json(record: Any, *, indent: int | None = None) -> bytes:
    r"""UTF-8 JSON in the order of the record's keys, text unescaped, non-finite numbers as null.

    Python would write NaN, which most other readers refuse. A lone surrogate, which UTF-8 has no bytes for, stays a
    `\udxxx` escape, which is JSON for the same character.

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

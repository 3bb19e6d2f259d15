"""Writing files and folders atomically, and JSON."""

import json
import math
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes) -> None:
    """Write `path` so that readers, and a crash, see either the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    partial.replace(path)


def write_once(path: Path, content: bytes) -> None:
    """Write `path` atomically, unless it has this content. Several processes may write the same content at once."""
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as folder:
        partial = Path(folder) / path.name
        partial.write_bytes(content)
        partial.replace(path)


def publish_folder(partial: Path, final: Path) -> None:
    """Rename the finished folder `partial` to `final`, replacing an existing folder."""
    superseded = final.with_name(f".{final.name}.superseded")
    shutil.rmtree(superseded, ignore_errors=True)
    if final.exists():
        # A rename cannot replace a non-empty folder.
        final.rename(superseded)
    partial.rename(final)
    shutil.rmtree(superseded, ignore_errors=True)


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

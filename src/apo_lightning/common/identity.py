"""What a content is: its SHA-256, under a name. That a file exists, its name and its place say nothing of its content.

An *identity* maps names ("the weights of model.path") to hashes. A *sealed* record is a JSON file with its own hash.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from apo_lightning.common.files import to_json
from apo_lightning.errors import ConfigError, in_brief

Record = TypeVar("Record")
Identity = Mapping[str, str]
"""Name → SHA-256, 64 hex digits."""
Files = Mapping[str, tuple[int, str]]
"""Path in a folder → size [bytes] and SHA-256."""
SEAL, FORMAT = "sha256", "format"
"""The keys of a sealed record's own hash, and of the version of its format."""
MAX_RECORD_BYTES = 1 << 28
"""A record is read as a whole."""


def sha256_of(parts: Iterable[bytes | memoryview]) -> str:
    """SHA-256 of bytes that are at hand in parts."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def sha256_of_lines(lines: Iterable[str]) -> str:
    """SHA-256 of lines of text, each with its end of line."""
    return sha256_of(line.encode("utf-8", errors="surrogatepass") + b"\n" for line in lines)


def sha256_of_file(path: Path) -> str:
    """SHA-256 of the bytes of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_plain(value: Any) -> str:
    """SHA-256 of numbers, texts, lists and mappings, whatever the order of keys; other values as their text.

    Example:
        >>> sha256_of_plain({"a": 1, "b": [2.5]}) == sha256_of_plain({"b": [2.5], "a": 1})
        True
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def differences(there: Identity, here: Identity) -> list[str]:
    """The names of contents that are not the same in two identities, or in one of them alone.

    Example:
        >>> differences({"data": "1f", "judge": "9c"}, {"data": "1f", "judge": "07", "tokenizer": "5e"})
        ['judge', 'tokenizer']
    """
    return [name for name in dict.fromkeys((*there, *here)) if there.get(name) != here.get(name)]


# ------------------------------------------------------------------ folders


def files_of(folder: Path, names: Iterable[str] | None = None) -> dict[str, tuple[int, str]]:
    """Size and hash of these files of a folder; None: of all that are in it, however deep."""
    found = sorted(_names_in(folder)) if names is None else names
    return {name: ((folder / name).stat().st_size, sha256_of_file(folder / name)) for name in found}


def difference_from(folder: Path, files: Files, *, reads_all: bool = True, besides: Collection[str] = ()) -> str | None:
    """What differs between a folder and its files as they were written; None: nothing.

    Without `reads_all` only names and sizes are compared. A file that is neither in `files` nor in `besides`, which
    has the name of the record that lists them, differs too.
    """
    for name, (size, sha256) in files.items():
        path = folder / name
        try:
            if not path.resolve().is_relative_to(folder.resolve()):
                return f"{name!r:.200} leads out of it"
            if not path.is_file():
                return f"{name!r:.200} is missing"
            if (found := path.stat().st_size) != size:
                return f"{name} has {found} of {size} bytes"
            if reads_all and sha256_of_file(path) != sha256:
                return f"{name} has changed since it was written"
        except (OSError, ValueError) as error:
            return f"{name!r:.200} cannot be read ({in_brief(error)})"
    unlisted = sorted(set(_names_in(folder)) - {*files, *besides})
    return f"{unlisted[0]!r:.200} is not one of its files" if unlisted else None


def _names_in(folder: Path) -> Iterator[str]:
    return (str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


# ------------------------------------------------------------------ records


def sealed(record: Mapping[str, Any], *, indent: int | None = 2) -> bytes:
    """The content of a JSON file that holds a record and the record's hash."""
    plain = json.loads(to_json(record))
    return to_json({**plain, SEAL: sha256_of_plain(plain)}, indent=indent) + b"\n"


def read_sealed(path: Path, version: int | None = None) -> dict[str, Any]:
    """The record in a sealed file, without its hash; with a `version`, also without that of its format.

    Raises:
        ConfigError: it cannot be read, is no record, is not what was written, or has a format of another version.
    """
    try:
        if not path.is_file():
            raise ValueError("it is no file")
        if path.stat().st_size > MAX_RECORD_BYTES:
            raise ValueError(f"it has more than {MAX_RECORD_BYTES} bytes")
        record = json.loads(path.read_bytes())
        if not isinstance(record, dict):
            raise TypeError("it is no record")
        seal = record.pop(SEAL, None)
        if seal not in (None, sha256_of_plain(record)):
            raise ValueError(f"its content is not that of its {SEAL}")
        found = None if version is None else record.pop(FORMAT, None)
        if seal is None and found == version:
            raise ValueError(f"it has no {SEAL} of its own")
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {in_brief(error)}") from error
    if found != version:
        raise ConfigError(f"{path} has format {found!r:.60}, and this version of apo-lightning reads format {version}")
    return record


def read_record(path: Path, kind: type[Record], version: int) -> Record:
    """`read_sealed` as a dataclass of this type."""
    try:
        return TypeAdapter(kind).validate_python(read_sealed(path, version))
    except ValidationError as error:
        [first, *_] = error.errors()
        raise ConfigError(f"{path} is damaged: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error

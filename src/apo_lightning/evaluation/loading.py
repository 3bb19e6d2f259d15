"""Writing and validated reading of result files such as `results.json`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import SCHEMA_VERSION, EvaluationResult

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass as JSON; a non-finite value becomes null, which a `Number` reads as NaN."""
    write_atomically(path, to_json(asdict(record), indent=2) + b"\n")


def read_result(path: Path) -> EvaluationResult:
    """Read `results.json`; raises as `read_record`."""
    return read_record(path, EvaluationResult)


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a file of `write_record` as a dataclass of this type; fields that it does not have are ignored.

    Raises:
        ConfigError: it is not JSON, has another structure, or a newer schema.
    """
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}): delete it or evaluate again") from error
    schema = content.get("schema") if isinstance(content, dict) else None
    if isinstance(schema, int) and schema > SCHEMA_VERSION:
        raise ConfigError(
            f"{path}: schema {schema} is newer than {SCHEMA_VERSION}, the newest read here: update apo-lightning"
        )
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{path}: {where}: {first['msg']}: delete it or evaluate again") from error

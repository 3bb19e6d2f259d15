"""Writing and validated reading of result files such as `results.json`."""

import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.errors import ConfigError
from apo_lightning.evaluation.records import SCHEMA_VERSION, EvaluationResult

Record = TypeVar("Record")


def write_record(path: Path, record: Any) -> None:
    """Write a dataclass as JSON; a non-finite value becomes null, and NaN when it is read again."""
    write_atomically(path, to_json(asdict(record), indent=2) + b"\n")


def read_result(path: Path) -> EvaluationResult:
    """Read `results.json`.

    Raises:
        ConfigError: it is not JSON, has another structure, or a newer schema.
    """
    return read_record(path, EvaluationResult)


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a file of `write_record` as a dataclass of this type.

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
        return _build(kind, content, "")
    except _MismatchError as error:
        raise ConfigError(f"{path}: {error}: delete it or evaluate again") from error


class _MismatchError(Exception):
    """The file has another type or field than the record declares."""


def _build(kind: Any, value: Any, where: str) -> Any:
    """The JSON `value` as an object of the annotated type `kind`; `where` names the field in errors."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        return _build(next(option for option in arguments if option is not types.NoneType), value, where)
    if is_dataclass(kind):
        return _build_record(typing.cast(type, kind), value, where)
    if origin is tuple:
        _require(isinstance(value, list), value, "a list", where)
        return tuple(_build(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Mapping:
        _require(isinstance(value, dict), value, "a mapping", where)
        keys = [_build(arguments[0], _json_key(key, arguments[0]), f"a key of {where}") for key in value]
        items = [_build(arguments[1], item, f"{where}[{key!r}]") for key, item in value.items()]
        return dict(zip(keys, items, strict=True))
    if origin is typing.Literal:
        _require(value in arguments, value, f"one of {', '.join(map(str, arguments))}", where)
        return value
    if kind is float and value is None:
        return math.nan
    is_bool = isinstance(value, bool)
    if kind is float and isinstance(value, int) and not is_bool:
        return float(value)
    _require(isinstance(value, kind) and (kind is bool or not is_bool), value, kind.__name__, where)
    return value


def _build_record(kind: type, value: Any, where: str) -> Any:
    _require(isinstance(value, dict), value, "a mapping", where or "the file")
    annotations = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    for field in fields(kind):
        if field.name not in value and field.default is MISSING and field.default_factory is MISSING:
            raise _MismatchError(f"{prefix}{field.name} is missing")
    if unknown := sorted(set(value) - set(annotations)):
        raise _MismatchError(f"{prefix}{unknown[0]} is not known")
    return kind(**{name: _build(annotations[name], item, f"{prefix}{name}") for name, item in value.items()})


def _json_key(key: str, kind: Any) -> Any:
    """JSON keys are strings; those of a mapping from int are numbers again."""
    return int(key) if kind is int and key.lstrip("-").isdecimal() else key


def _require(condition: bool, value: Any, expected: str, where: str) -> None:
    if not condition:
        text = json.dumps(value, ensure_ascii=False)
        raise _MismatchError(f"{where} is {text if len(text) <= 40 else f'{text[:40]}…'}, not {expected}")

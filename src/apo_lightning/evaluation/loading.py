"""Result files such as `results.json`: written from their records, and read back exactly."""

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
    """Write a dataclass as JSON; a value that is not finite becomes null, and NaN again when it is read."""
    write_atomically(path, to_json(asdict(record), indent=2) + b"\n")


def read_result(path: Path) -> EvaluationResult:
    """Read `results.json`.

    Raises:
        ConfigError: it is no JSON, has another shape, or was written by a newer schema.
    """
    result = read_record(path, EvaluationResult)
    if len(result.problems) != result.data.num_problems:
        raise ConfigError(
            f"{path}: lists {len(result.problems)} problems where data.num_problems says {result.data.num_problems}: "
            "evaluate again"
        )
    if wrong := [name for name, values in result.by_problem.items() if len(values) != len(result.problems)]:
        raise ConfigError(
            f"{path}: by_problem.{wrong[0]} has {len(result.by_problem[wrong[0]])} values for "
            f"{len(result.problems)} problems: evaluate again"
        )
    if any(not 0 <= problem.num_correct <= problem.num_samples for problem in result.problems):
        raise ConfigError(
            f"{path}: a problem counts more correct samples than samples, or fewer than 0: evaluate again"
        )
    return result


def read_record(path: Path, kind: type[Record]) -> Record:
    """Read a file that `write_record` wrote, as a dataclass of this type.

    Raises:
        ConfigError: it is no JSON, has another shape, or was written by a newer schema.
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
    """The file holds another type or another field than the record declares."""


def _build(kind: Any, value: Any, where: str) -> Any:
    """The JSON `value` as an object of the annotated type `kind`; `where` names the field in errors."""
    if is_dataclass(kind):
        return _build_record(typing.cast(type, kind), value, where)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is types.UnionType:
        if value is None and types.NoneType in arguments:
            return None
        return _build(next(option for option in arguments if option is not types.NoneType), value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _MismatchError(f"{where} is {_short(value)}, not a list")
        return tuple(_build(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if origin is Mapping:
        return _build_mapping(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments:
            raise _MismatchError(f"{where} is {_short(value)}, not one of {', '.join(map(str, arguments))}")
        return value
    return _build_scalar(kind, value, where)


def _build_record(kind: type, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _MismatchError(f"{where or 'the file'} is {_short(value)}, not a mapping")
    annotations = typing.get_type_hints(kind)
    prefix = f"{where}." if where else ""
    required = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]
    if missing := [name for name in required if name not in value]:
        raise _MismatchError(f"{prefix}{missing[0]} is missing")
    if unknown := sorted(set(value) - set(annotations)):
        raise _MismatchError(f"{prefix}{unknown[0]} is not known")
    return kind(**{name: _build(annotations[name], item, f"{prefix}{name}") for name, item in value.items()})


def _build_mapping(arguments: tuple[Any, ...], value: Any, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise _MismatchError(f"{where} is {_short(value)}, not a mapping")
    key_kind, item_kind = arguments
    built = {}
    for key, item in value.items():
        # JSON keys are text: an int key, as of `recall`, comes back as one.
        is_number = key_kind is int and key.lstrip("-").isdecimal()
        typed = _build(key_kind, int(key) if is_number else key, f"a key of {where}")
        built[typed] = _build(item_kind, item, f"{where}[{key!r}]")
    return built


def _build_scalar(kind: type, value: Any, where: str) -> Any:
    if kind is float and value is None:
        return math.nan
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise _MismatchError(f"{where} is {_short(value)}, not {kind.__name__}")
    return value


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"

"""Whether a cell is done: its record, compared with its configuration and with the weights that it would read now."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from apo_lab.paper.cells import Cell, WeightFile, config_sha256, weight_files
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.errors import ConfigError

RECORD = "cell.json"
"""In the folder of a cell, from its first moment on."""
State = Literal["done", "stale", "begun", "missing"]
"""Stale: another configuration or other weights than now, or weights that are not there. Begun: not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a cell was made with."""

    config_sha256: str
    weights: Mapping[str, WeightFile]
    is_finished: bool
    arguments: tuple[str, ...]
    """The words behind `apo`."""

    @property
    def hashes(self) -> dict[str, str]:
        """The SHA-256 of each file of weights."""
        return {name: file.sha256 for name, file in self.weights.items()}


def current_record(cell: Cell, *, is_finished: bool) -> Record:
    """What the cell would be made with now."""
    last = read_record_of(cell)
    return Record(
        config_sha256=config_sha256(cell),
        weights=weight_files(cell, last.weights if last else {}),
        is_finished=is_finished,
        arguments=tuple(cell.arguments),
    )


def read_record_of(cell: Cell) -> Record | None:
    """The record in the cell's folder; None where it has not begun. Raises `ConfigError` where it cannot be read."""
    path = cell.folder / RECORD
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        weights = {name: WeightFile(**file) for name, file in found.pop("weights").items()}
        return Record(**{**found, "weights": weights, "arguments": tuple(found["arguments"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no record of a cell ({error}): move {cell.folder} away") from error


def write_record_of(cell: Cell, record: Record) -> None:
    """Write the record into the cell's folder."""
    write_atomically(cell.folder / RECORD, to_json(asdict(record), indent=1))


def state_of(cell: Cell) -> State:
    """The state of a cell. One that read the weights of a run which is not done is stale: they may change."""
    record = read_record_of(cell)
    if record is None:
        return "missing"
    now = current_record(cell, is_finished=True)
    if (now.config_sha256, now.hashes) != (record.config_sha256, record.hashes):
        return "stale"
    if cell.needs is not None and state_of(cell.needs) != "done":
        return "stale"
    return "done" if record.is_finished else "begun"


def is_ready(cell: Cell) -> bool:
    """Whether the weights that the cell reads are there."""
    return cell.needs is None or state_of(cell.needs) == "done"


def move_aside(cell: Cell, root: Path) -> Path:
    """Move a stale cell's folder below `stale/`, and return where it is."""
    taken = root / "stale" / cell.name
    number = 1 + sum(1 for _ in taken.glob("*"))
    target = taken / f"{number}"
    target.parent.mkdir(parents=True, exist_ok=True)
    return cell.folder.rename(target)

"""The records of an offline run of W&B, whose own reader is no Python: a LevelDB log of protocol buffers."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BLOCK = 32768
HEADER = struct.Struct("<IHB")
WHOLE, LAST = 1, 4


def records(path: Path) -> Iterator[Any]:
    """The records of a `.wandb` file."""
    from wandb.proto import wandb_internal_pb2  # late: every process that tests would load it for a second

    content = path.read_bytes()
    position, record = 7, b""  # after the signature
    while position + HEADER.size <= len(content):
        if BLOCK - position % BLOCK < HEADER.size:
            position += BLOCK - position % BLOCK  # no header fits into the rest of a block
            continue
        _, length, kind = HEADER.unpack_from(content, position)
        position += HEADER.size
        record += content[position : position + length]
        position += length
        if kind in (WHOLE, LAST):
            yield wandb_internal_pb2.Record.FromString(record)
            record = b""


def history(path: Path) -> list[dict[str, Any]]:
    """What was logged, a dict a call."""
    rows = [record.history.item for record in records(path) if record.WhichOneof("record_type") == "history"]
    return [{_key(item): json.loads(item.value_json) for item in row} for row in rows]


def begun(path: Path) -> Any:
    """The run's id, name and group, and its configuration at the beginning."""
    return next(record.run for record in records(path) if record.WhichOneof("record_type") == "run")


def config(path: Path) -> dict[str, Any]:
    """The configuration that was logged."""
    updates = [record.config.update for record in records(path) if record.WhichOneof("record_type") == "config"]
    return {_key(item): json.loads(item.value_json) for items in updates for item in items}


def _key(item: Any) -> str:
    return item.key or "/".join(item.nested_key)

"""Readers of rows: a local file, or a data set of the Hugging Face hub."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from apo_lightning.common.formatting import GIB
from apo_lightning.data.rows import RecordLayout, Row, layout_of_file, require_unique_ids, row_from_record
from apo_lightning.errors import ConfigError, in_brief

SUFFIXES = (".jsonl", ".parquet")
MAX_RECORD_BYTES = 16 * 2**20
"""A longer line is no problem with an answer, and reading it whole could take all memory."""
MAX_FILE_BYTES = 8 * GIB
"""Most bytes of a file, decompressed: its rows are held in memory."""
ROWS_PER_BATCH = 256
"""Of a parquet file. A compressed cell can become thousands of copies of itself, so few rows are decoded at once."""
SPLITS = ("train", "test", "validation", "dev", "val")


@dataclass(frozen=True, kw_only=True)
class HubDataset(RecordLayout):
    """A data set of the Hugging Face hub, and the layout of its records.

    Attributes:
        hub_id: "owner/name", or a local folder that `datasets` can read.
        config: the data set's configuration, or several that are read one after the other, as MATH's subjects; None
            where it has only one.
        split: "train", "test", …
    """

    hub_id: str
    config: str | Sequence[str] | None = None
    split: str = "train"


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """Problems in a local file or in a data set of the hub.

    Attributes:
        path: a local `.jsonl` or `.parquet` file, or a folder of them (see `files_of`), with an answer in one of the
            columns of `RecordLayout()`, in the layout of `hub`, or in MATH's layout (see `layout_of_file`). Takes
            precedence over `hub`.
        hub: read if there is no path.
    """

    path: str | None = None
    hub: HubDataset | None = None

    def check(self) -> None:
        """Read the local file's first record only, so that it is cheap enough for a preflight.

        Raises:
            ConfigError: neither path nor hub, no such file, or an unknown layout.
        """
        if self.path is not None:
            if next(self._file_rows(Path(self.path), "row"), None) is None:
                raise ConfigError(f"{self.path} has no rows: give a file with a problem and an answer on each line")
        elif self.hub is None:
            raise ConfigError("a problem set has neither path nor hub: give the path of a .jsonl or .parquet file")

    def rows(self, name: str) -> list[Row]:
        """All rows, in the order of the file; rows without an id get "<name>-<line>". A hub data set is downloaded.

        Raises:
            ConfigError: no such file or data set (offline, unknown name, gated), or a malformed row, named by its line.
        """
        self.check()
        if self.path is not None:
            rows, where = list(self._file_rows(Path(self.path), name)), self.path
        else:
            assert self.hub is not None
            rows, where = _hub_rows(self.hub, name), self.hub.hub_id
        require_unique_ids(rows, where)
        return rows

    def _file_rows(self, path: Path, name: str) -> Iterator[Row]:
        count = 0
        known: dict[str, Mapping[str, Any]] = {}
        for file in files_of(path, self.hub.split if self.hub is not None else None):
            layout, number = None, 0
            for number, record in _records(file):
                # Once per file: a MATH solution without a box is a row without an answer, not another layout.
                layout = layout or layout_of_file(record, self.hub)
                row = row_from_record(record, layout, where=f"{file}:{number}", default_id=f"{name}-{count + number}")
                # Raw DAPO has a hundred equal copies of each record: their columns would take gigabytes.
                first = known.setdefault(row.problem, row.columns)
                yield replace(row, columns=first) if first == row.columns else row
            count += number


def files_of(path: Path, split: str | None) -> list[Path]:
    """The data files of a path: itself, or those anywhere in a folder, sorted, as a data set is laid out on the hub.

    Where names of files or folders begin with a split (`algebra/train-00000-of-00001.parquet`, `test/algebra.jsonl`),
    only those of `split` are read.

    Raises:
        ConfigError: the folder has no file of the split; or it has several splits, and `split` is None.
    """
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*") if file.suffix in SUFFIXES)
    splits = {file: _split_of(file.relative_to(path)) for file in files}
    named = {own for own in splits.values() if own is not None}
    if files and not named:
        return files
    if split is None and len(named) == 1:
        [split] = named
    found = [file for file in files if split is not None and splits[file] == split]
    if not found:
        what = f"the splits {', '.join(sorted(named))}, not {split}" if named else "no .jsonl or .parquet file"
        raise ConfigError(f"folder {path} has {what}: give a folder or a file of the split that is meant")
    return found


def _split_of(file: Path) -> str | None:
    """The split that a part of the path names, such as `train-00000-of-00001`."""
    heads = (re.split(r"[-_.]", part)[0] for part in reversed(file.parts))
    return next((head for head in heads if head in SPLITS), None)


def _hub_rows(hub: HubDataset, name: str) -> list[Row]:
    if not isinstance(hub.config, str | None):
        parts = [_hub_rows(replace(hub, config=config), f"{name}-{config}") for config in hub.config]
        return [row for part in parts for row in part]
    # Imported here because it takes seconds, which a run on a local file does not need.
    import datasets

    try:
        records = datasets.load_dataset(hub.hub_id, name=hub.config, split=hub.split)
    except Exception as error:
        # `datasets` raises a dozen unrelated types here, which need the same remedy.
        raise ConfigError(
            f"hub data set {hub.hub_id} (config {hub.config}, split {hub.split}) cannot be loaded: "
            f"{type(error).__name__}: {in_brief(error)} — offline, give a local .jsonl or .parquet as its path"
        ) from error
    return [
        row_from_record(record, hub, where=f"{hub.hub_id}:{number}", default_id=f"{name}-{number}")
        for number, record in enumerate(records, start=1)
    ]


def _records(path: Path) -> Iterator[tuple[int, object]]:
    """(line number from 1, decoded record); blank lines are not records."""
    if not path.is_file():
        raise ConfigError(f"data file {path} does not exist: check the path")
    _check_size(path, path.stat().st_size)
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_records(path), start=1)
        return
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"data file {path} has the suffix '{path.suffix}': only .jsonl and .parquet can be read")
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(MAX_RECORD_BYTES + 1), b""), start=1):
            if len(line) > MAX_RECORD_BYTES:
                raise ConfigError(
                    f"{path}:{number} is longer than {MAX_RECORD_BYTES} bytes: remove or shorten the line"
                )
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except ValueError as error:  # bad JSON or bad UTF-8
                raise ConfigError(f"{path}:{number} is not valid JSON ({error}): fix or remove the line") from error
            yield number, record


def _check_size(path: Path, num_bytes: int) -> None:
    if num_bytes > MAX_FILE_BYTES:
        raise ConfigError(
            f"data file {path} holds more than {MAX_FILE_BYTES // GIB} GiB: split it into several files of one folder"
        )


def _parquet_records(path: Path) -> Iterator[object]:
    """Records in batches: the raw DAPO file has 1.8 million rows, too many to hold twice."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            num_bytes = 0
            for batch in file.iter_batches(ROWS_PER_BATCH):
                num_bytes += batch.nbytes
                _check_size(path, num_bytes)
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path} is not a parquet file that can be read ({error}): download it again") from error

"""Readers of rows: a local file or folder, or a data set of the Hugging Face hub."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

from apo_lightning.data.rows import (
    HALF_CHARACTER,
    RecordLayout,
    Row,
    layout_of_file,
    require_unique_ids,
    row_from_record,
)
from apo_lightning.errors import ConfigError, in_brief

ROWS_PER_BATCH = 256
"""Rows of a parquet file decoded at once: few, since a compressed cell can become thousands of copies of itself."""


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
        path: a local `.jsonl` or `.parquet` file, or a folder that `datasets` can read, of which the split of `hub` is
            taken ("train" without one). Problem and answer are in the columns of `RecordLayout()`,
            or in the layout of `hub`. Takes precedence over `hub`.
        hub: read if there is no path.
    """

    path: str | None = None
    hub: HubDataset | None = None

    @property
    def origin(self) -> str:
        """Where the problems come from, for people: the name of the file, or the data set with its split."""
        if self.path is not None:
            return Path(self.path).name
        assert self.hub is not None
        return f"{self.hub.hub_id} ({self.hub.config or 'default'}, {self.hub.split})"

    def check(self) -> None:
        """Read the local file's first record only, so that a wrong file is refused at once.

        Raises:
            ConfigError: neither path nor hub, no such file, or an unknown layout.
        """
        if self.path is None and self.hub is None:
            raise ConfigError("a problem set has neither path nor hub: give the path of a .jsonl or .parquet file")
        is_file = self.path is not None and not Path(self.path).expanduser().is_dir()
        if is_file and next(self._rows("row"), None) is None:
            raise ConfigError(f"{self.path} has no rows: give a file with a problem and an answer on each line")

    def rows(self, name: str) -> list[Row]:
        """All rows, in the order of the file; rows without an id get "<name>-<line>". A hub data set is downloaded.

        Raises:
            ConfigError: no such file or data set (offline, unknown name, gated), or a malformed row, named by its line.
        """
        self.check()
        rows = list(self._rows(name))
        require_unique_ids(rows, name)
        return rows

    def _rows(self, name: str) -> Iterator[Row]:
        known: dict[str, Mapping[str, Any]] = {}
        for place, prefix, records in self._parts(name):
            layout = self.hub if self.path is None else None
            for number, record in records:
                layout = layout or layout_of_file(record, self.hub)
                row = row_from_record(record, layout, where=f"{place}:{number}", default_id=f"{prefix}-{number}")
                # Raw DAPO has a hundred equal copies of each record: their columns would take gigabytes.
                first = known.setdefault(row.problem, row.columns)
                yield replace(row, columns=first) if first == row.columns else row

    def _parts(self, name: str) -> Iterator[tuple[str, str, Iterable[tuple[int, object]]]]:
        """(place, prefix of ids, numbered records) of the file, or of each configuration of the data set."""
        if self.path is not None:
            path, split = Path(self.path).expanduser(), "train" if self.hub is None else self.hub.split
            yield self.path, name, _loaded(str(path), None, split) if path.is_dir() else _records(path)
            return
        assert self.hub is not None
        configs = self.hub.config
        for config in [configs] if isinstance(configs, str | None) else configs:
            prefix = name if config is configs else f"{name}-{config}"
            yield self.hub.hub_id, prefix, _loaded(self.hub.hub_id, config, self.hub.split)


def _loaded(place: str, config: str | None, split: str) -> Iterator[tuple[int, object]]:
    """(number from 1, record) of a data set of the hub or in a local folder."""
    # Imported here because it takes seconds, which a run on a local file does not need.
    import datasets

    try:
        return enumerate(datasets.load_dataset(place, name=config, split=split), start=1)
    except Exception as error:
        # `datasets` raises a dozen unrelated types here, which need the same remedy.
        raise ConfigError(
            f"hub data set {place} (config {config}, split {split}) cannot be loaded: "
            f"{type(error).__name__}: {in_brief(error)} — offline, give a local .jsonl or .parquet as its path"
        ) from error


def _records(path: Path) -> Iterator[tuple[int, object]]:
    """(line number from 1, decoded record); blank lines are not records."""
    if not path.is_file():
        raise ConfigError(f"data file {path} does not exist: check the path")
    if path.suffix == ".parquet":
        yield from enumerate(_parquet_records(path), start=1)
        return
    if path.suffix != ".jsonl":
        raise ConfigError(f"data file {path} has the suffix '{path.suffix}': only .jsonl and .parquet can be read")
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, or a thousand brackets
                raise ConfigError(f"{path}:{number} is not valid JSON ({error}): fix or remove the line") from error
            may_be_cut = b"\\u" in line or not line.isascii()
            if may_be_cut and (half := HALF_CHARACTER.search(json.dumps(record, ensure_ascii=False))):
                raise ConfigError(f"{path}:{number} has {half[0]!r}, half of a character: correct the line")
            yield number, record


def _parquet_records(path: Path) -> Iterator[object]:
    """Records in batches: the raw DAPO file has 1.8 million rows, too many to hold twice."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS_PER_BATCH):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a parquet file that can be read ({error}): download it again") from error

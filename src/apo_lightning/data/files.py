"""Where rows are read from: a local file, or a data set of the Hugging Face hub."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet

from apo_lightning.data.rows import RecordLayout, Row, layout_of_file, require_unique_ids, row_from_record
from apo_lightning.errors import ConfigError, in_brief


@dataclass(frozen=True, kw_only=True)
class HubDataset:
    """A data set of the Hugging Face hub, and how its records are laid out.

    Attributes:
        hub_id: "owner/name", or a local folder that `datasets` can read.
        config: the data set's configuration; None where it has a single one.
        split: "train", "test", …
        problem_column: as in `RecordLayout`.
        answer_column: as in `RecordLayout`.
        answer_is_boxed: as in `RecordLayout`.
    """

    hub_id: str
    config: str | None = None
    split: str = "train"
    problem_column: str | None = None
    answer_column: str | None = None
    answer_is_boxed: bool = False

    @property
    def layout(self) -> RecordLayout:
        """The columns to read from the data set's records."""
        return RecordLayout(
            problem_column=self.problem_column, answer_column=self.answer_column, answer_is_boxed=self.answer_is_boxed
        )


@dataclass(frozen=True, kw_only=True)
class ProblemSet:
    """Problems in a local file or in a data set of the hub.

    Attributes:
        path: a local `.jsonl` or `.parquet` file, with an answer in one of the columns that `RecordLayout()` reads, in
            the layout of `hub`, or in MATH's own, as `layout_of_file` finds. Goes before the hub.
        hub: read when there is no path.
    """

    path: str | None = None
    hub: HubDataset | None = None

    def check(self) -> None:
        """Look at the local file's first record only, so that a preflight costs nothing.

        Raises:
            ConfigError: nothing to read, no such file, or a layout that is not understood.
        """
        if self.path is not None:
            _first_row(Path(self.path), self.hub)
        elif self.hub is None:
            raise ConfigError("a problem set has neither path nor hub: give the path of a .jsonl or .parquet file")

    def rows(self, name: str) -> list[Row]:
        """All rows, in the order of the file.

        Args:
            name: of the data set; the ids of rows that bring none are "<name>-<line>".

        Raises:
            ConfigError: no such file or data set, or a malformed row.
        """
        self.check()
        rows = list(self._rows(name))
        where = self.path or (self.hub.hub_id if self.hub else name)
        if not rows:
            raise ConfigError(f"{where} has no rows: give a file with a problem and an answer on each line")
        require_unique_ids(rows, where)
        return rows

    def _rows(self, name: str) -> Iterator[Row]:
        if self.path is not None:
            return file_rows(Path(self.path), name, self.hub)
        assert self.hub is not None
        return hub_rows(self.hub, name)


def file_rows(path: Path, name: str, hub: HubDataset | None = None) -> Iterator[Row]:
    """The rows of a local file, one by one.

    Args:
        path: of the file.
        name: of the data set; the ids of rows that bring none are "<name>-<line>".
        hub: the data set that it may be a copy of.

    Raises:
        ConfigError: no such file, neither `.jsonl` nor `.parquet`, or a malformed row, which is named by its line.
    """
    layout = None
    for number, record in _records(path):
        # Once for the file: a MATH solution without a box is a row without an answer, not a row of another layout.
        layout = layout or layout_of_file(record, None if hub is None else hub.layout)
        yield row_from_record(record, layout, where=f"{path}:{number}", default_id=f"{name}-{number}")


def hub_rows(hub: HubDataset, name: str) -> Iterator[Row]:
    """The rows of a hub data set, downloaded on first use.

    Raises:
        ConfigError: it cannot be had (offline, no such name, gated), or a row is malformed.
    """
    # Imported here because it takes seconds, which a run on a local file need not pay.
    import datasets

    try:
        records = datasets.load_dataset(hub.hub_id, name=hub.config, split=hub.split)
    except Exception as error:
        # `datasets` raises a dozen unrelated types here; to the user they are all one thing.
        reason = in_brief(error)
        raise ConfigError(
            f"hub data set {hub.hub_id} (config {hub.config}, split {hub.split}) cannot be loaded: "
            f"{type(error).__name__}: {reason} — offline, give a local .jsonl or .parquet as its path"
        ) from error
    for number, record in enumerate(records, start=1):
        yield row_from_record(record, hub.layout, where=f"{hub.hub_id}:{number}", default_id=f"{name}-{number}")


def _first_row(path: Path, hub: HubDataset | None) -> None:
    if next(file_rows(path, path.stem, hub), None) is None:
        raise ConfigError(f"{path} has no rows: give a file with a problem and an answer on each line")


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
            except ValueError as error:  # bad JSON or bad UTF-8
                raise ConfigError(f"{path}:{number} is not valid JSON ({error}): mend or remove the line") from error
            yield number, record


def _parquet_records(path: Path) -> Iterator[object]:
    """A batch at a time: the raw DAPO file has 1.8 million rows, too many to hold twice."""
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise ConfigError(f"{path} is not a parquet file that can be read ({error}): download it again") from error

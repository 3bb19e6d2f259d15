"""The loggers of a run: `metrics.csv`, a row a step, whole in the file whenever the process may end; and others."""

import contextlib
import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from apo_lightning.checkpoints.folder import Checkpoint
from apo_lightning.common.console import say
from apo_lightning.common.files import append, flush_written, write_atomically
from apo_lightning.errors import ConfigError

NAME = "metrics.csv"


class MetricsCSV(Logger):
    """`metrics.csv`: sorted columns, one for each number that was ever logged; cells without a value are empty.

    Lightning's own logger truncates an existing file and rewrites it in place: a resumed run, or one that is killed
    while a column is added, would lose its first rows. `rows` are those of the part before it was resumed.
    """

    def __init__(self, folder: Path, rows: list[dict[str, Any]]) -> None:
        super().__init__()
        self.path = folder / NAME
        self.rows = rows
        self._columns: list[str] = []

    name = version = property(lambda self: "")  # pyright: ignore[reportIncompatibleMethodOverride]
    """Empty: Lightning's folder of the logger is the run's folder itself."""

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Do nothing: hyper-parameters are in `.hydra/`."""

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Append a row; a new column rewrites the whole file. Raises `ConfigError` for a name that is no column's."""
        if strange := [name for name in metrics if not (name and name.isprintable())]:
            raise ConfigError(f"the metric {strange[0]!r:.200} cannot be a column of {NAME}: give it a printable name")
        row = {name: value if type(value) in (int, float) else float(value) for name, value in metrics.items()}
        self.rows.append(row | {"step": step})
        if self.rows[-1].keys() <= set(self._columns):
            append(self.path, self._lines(self.rows[-1:]))
            return
        self._columns = sorted({column for row in self.rows for column in row})
        header = {column: column for column in self._columns}
        write_atomically(self.path, self._lines([header, *self.rows]))

    def _lines(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        text = io.StringIO(newline="")
        csv.DictWriter(text, fieldnames=self._columns).writerows(rows)
        return text.getvalue().encode()


def rows_until(folder: Path, step: int, validated_step: int | None, every: int = 1) -> list[dict[str, Any]]:
    """The rows of a run up to a checkpoint after `step` rollouts, without empty cells; later ones are logged again.

    `validated_step` is the last validated step at the checkpoint: the file may have a later validation already. Rows of
    training are there for each step that `every` divides; one line says what is damaged or missing.
    """
    path = folder / NAME
    lines = path.read_bytes().decode(errors="replace").split("\n")[:-1] if path.is_file() else []
    read = csv.DictReader(line for line in lines if "\0" not in line)  # a power cut leaves half a line, or zeros
    rows = [kept for row in read if (kept := _filled(row)) is not None]
    validated_until = -1 if validated_step is None else validated_step
    # Rows without a reward are of validation passes and what follows them, or of Lightning's callbacks before the next
    # step, which log those of the checkpoint's own step again.
    other_until = max(validated_until, step - 1)
    kept = [row for row in rows if int(row["step"]) <= (step if "train/reward" in row else other_until)]
    missing = {*range(every, step + 1, every)} - {int(row["step"]) for row in kept if "train/reward" in row}
    if missing or len(rows) < len(lines) - 1:
        lost = f"{len(missing)} of {step} steps have no row{f', the first is {min(missing)}' if missing else ''}"
        say(
            f"{path}: {max(len(lines) - 1, 0) - len(rows)} rows are damaged, and {lost}; the run continues without them"
        )
    return kept


def _filled(row: Mapping[Any, Any]) -> dict[str, str] | None:
    """The cells of a row that are not empty; None: one is missing, or is no number."""
    cells = {column: cell for column, cell in row.items() if cell != ""}
    try:
        return cells if [int(cells["step"]), *map(float, cells.values())] else None
    except (ValueError, TypeError, KeyError):
        return None


def loggers_of(cfg: DictConfig, output_dir: Path, resumed: Checkpoint | None) -> list[Logger]:
    """The loggers: `metrics.csv` always, with its rows up to the checkpoint; others by `logger=…`."""
    kept = []
    if resumed is not None:
        header, every = resumed.header, cfg.trainer.get("log_every_n_steps") or sys.maxsize
        kept = rows_until(resumed.folder.parent.parent, header.step, header.validated_step, every)
    others: list[Any] = [instantiate(node, _convert_="all") for node in (cfg.logger or {}).values()]
    for logger in others:
        logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
    return [MetricsCSV(output_dir, kept), *others]


@contextlib.contextmanager
def closing(loggers: Sequence[Logger]) -> Iterator[None]:
    """Flush the rows to disk, and end the W&B run, successful or not: Lightning would log a sweep's next job to it."""
    failed = True
    try:
        yield
        flush_written()
        failed = False
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=int(failed))

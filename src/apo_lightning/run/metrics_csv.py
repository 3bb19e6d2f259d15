"""The loggers of a run: `metrics.csv`, a row a step, whole in the file whenever the process may end; and others."""

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from lightning.pytorch.loggers import Logger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig, OmegaConf

from apo_lightning.checkpoints.folder import Checkpoint
from apo_lightning.common.files import write_atomically

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
        """Append a row; a new column rewrites the whole file."""
        row = {**metrics, "step": step}
        self.rows.append(row)
        if row.keys() <= set(self._columns):
            with self.path.open("ab", buffering=0) as file:
                file.write(self._lines([row]))
            return
        self._columns = sorted({column for row in self.rows for column in row})
        header = {column: column for column in self._columns}
        write_atomically(self.path, self._lines([header, *self.rows]))

    def _lines(self, rows: Sequence[Mapping[str, Any]]) -> bytes:
        text = io.StringIO(newline="")
        csv.DictWriter(text, fieldnames=self._columns).writerows(rows)
        return text.getvalue().encode()


def rows_until(folder: Path, step: int, validated_step: int | None) -> list[dict[str, Any]]:
    """The rows of a run up to a checkpoint after `step` rollouts, without empty cells; later ones are logged again.

    `validated_step` is the last validated step at the checkpoint: the file may have a later validation already.
    """
    path = folder / NAME
    if not path.is_file():
        return []
    # A power cut may leave the beginning of a row.
    lines = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    rows = [{column: value for column, value in row.items() if value != ""} for row in csv.DictReader(lines)]
    validated_until = -1 if validated_step is None else validated_step
    # Rows without a reward are of validation passes and what follows them, or of Lightning's callbacks before the next
    # step, which log those of the checkpoint's own step again.
    other_until = max(validated_until, step - 1)
    return [row for row in rows if int(row["step"]) <= (step if "train/reward" in row else other_until)]


def loggers_of(cfg: DictConfig, output_dir: Path, resumed: Checkpoint | None) -> list[Logger]:
    """The loggers: `metrics.csv` always, with its rows up to the checkpoint; others by `logger=…`."""
    kept = []
    if resumed is not None:
        kept = rows_until(resumed.folder.parent.parent, resumed.header.step, resumed.header.validated_step)
    others: list[Any] = [instantiate(node, _convert_="all") for node in (cfg.logger or {}).values()]
    for logger in others:
        logger.log_hyperparams(OmegaConf.to_container(cfg, resolve=True))
    return [MetricsCSV(output_dir, kept), *others]


@contextlib.contextmanager
def closing(loggers: Sequence[Logger]) -> Iterator[None]:
    """End the W&B run with the run, successful or not: Lightning would log the next job of a sweep to it."""
    failed = True
    try:
        yield
        failed = False
    finally:
        for logger in loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.finish(exit_code=int(failed))

"""Runs of W&B and TensorBoard: curves, completions, configuration and summary, in one run that a resume continues."""

import secrets
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from apo_lightning.common.console import say
from apo_lightning.common.files import to_json, write_atomically

LONGEST_NAME = 128
"""Characters of a run's name that W&B accepts."""
COLUMNS = ("prompt", "completion", "reward", "advantage", "correct")


@runtime_checkable
class RunLogger(Protocol):
    """The methods that a run calls in addition to Lightning's; a logger without them gets the curves alone."""

    def begin(self, after_step: int | None, logged: AbstractSet[tuple[int, str]]) -> None:
        """Continue the logged run of this folder after a step, or begin a new one if that is None.

        `logged` has (step, key) of the numbers that were logged after `after_step`, before the run was stopped.
        """

    def log_completions(self, completions: Sequence[Mapping[str, Any]], step: int) -> None:
        """Show completions, each with `COLUMNS`."""

    def log_summary(self, summary: Mapping[str, Any]) -> None:
        """Show the content of `summary.json`."""

    def close(self, *, failed: bool) -> None:
        """End the logged run, so that the next job of a sweep begins its own."""


class WandbRun(WandbLogger):
    """A W&B run; its id is in `wandb/run_id` of the run's folder, so a resumed run continues it.

    W&B only appends. Numbers that the stopped part logged after its last checkpoint are therefore not logged again:
    the resumed run repeats those steps, and computes the same. A process that is killed loses what W&B has not written
    yet: the last 15 seconds.

    Args:
        save_dir: folder of the run.
        name: shown by W&B, cut to 128 characters; empty: W&B chooses one.
        **settings: of `wandb.init`, such as project, group and mode.
    """

    def __init__(self, save_dir: str, name: str | None = None, **settings: Any) -> None:
        short = (name or "")[:LONGEST_NAME] or None
        super().__init__(save_dir=save_dir, name=short, settings={"silent": True}, **settings)
        del self._wandb_init["anonymous"]  # W&B warns of it on the terminal, even of None
        self._logged: AbstractSet[tuple[int, str]] = frozenset()

    @rank_zero_only
    def begin(self, after_step: int | None, logged: AbstractSet[tuple[int, str]]) -> None:
        """Read the id of the run, or store a new one."""
        path = Path(str(self.save_dir)) / "wandb" / "run_id"
        is_continued = after_step is not None and path.is_file()
        if not is_continued:
            write_atomically(path, secrets.token_hex(4).encode())
        self._id = self._wandb_init["id"] = path.read_text()
        self._logged = logged if is_continued else frozenset()
        run = self.experiment
        say(f"W&B: {f'wandb sync {run.settings.sync_dir} uploads run {run.id}' if run.offline else run.url}")

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Log the numbers of a step that are not logged yet."""
        if fresh := {key: value for key, value in metrics.items() if (step, key) not in self._logged}:
            super().log_metrics(fresh, step)

    @rank_zero_only
    def log_completions(self, completions: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log a table of completions."""
        if (step, "train/reward") not in self._logged:
            rows = [[completion[column] for column in COLUMNS] for completion in completions]
            self.log_table("completions", columns=list(COLUMNS), data=rows, step=step)

    @rank_zero_only
    def log_summary(self, summary: Mapping[str, Any]) -> None:
        """Add the numbers to the run's summary, below `run`."""
        self.experiment.summary["run"] = summary

    @rank_zero_only
    def close(self, *, failed: bool) -> None:
        """Finish the run; Lightning's logger would log the next job of a sweep to it."""
        if self._experiment is not None:
            self._experiment.finish(exit_code=int(failed))
            self._experiment = None


class TensorBoardRun(TensorBoardLogger):
    """Event files of TensorBoard; those of steps after the checkpoint are hidden when the run is resumed.

    Args:
        save_dir: folder of the run; the files are in `tensorboard/` of it.
    """

    def __init__(self, save_dir: str) -> None:
        # A killed run loses what was logged after the last flush.
        super().__init__(save_dir, name="tensorboard", version="", default_hp_metric=False, flush_secs=10)

    def begin(self, after_step: int | None, logged: AbstractSet[tuple[int, str]]) -> None:
        """Hide events that the resumed run logs again, or all events of the folder if the run begins."""
        self._kwargs["purge_step"] = 0 if after_step is None else after_step + 1

    @rank_zero_only
    def log_completions(self, completions: Sequence[Mapping[str, Any]], step: int) -> None:
        """Log a table of completions as Markdown."""
        lines = [COLUMNS, ["---"] * len(COLUMNS), *([row[column] for column in COLUMNS] for row in completions)]
        table = "\n".join("|".join(_cell(value) for value in line) for line in lines)
        self.experiment.add_text("completions", table, step)

    @rank_zero_only
    def log_summary(self, summary: Mapping[str, Any]) -> None:
        """Log `summary.json` as text."""
        text = to_json(summary, indent=2).decode()
        self.experiment.add_text("summary", "    " + text.replace("\n", "\n    "), summary["steps"])

    @rank_zero_only
    def close(self, *, failed: bool) -> None:
        """Write what is in memory."""
        self.experiment.close()


def _cell(value: Any) -> str:
    r"""A value as one cell of a Markdown table.

    Example:
        >>> _cell("|x|\n<b>")
        '&#124;x&#124; ⏎ &lt;b>'
    """
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace("|", "&#124;").replace("\n", " ⏎ ")

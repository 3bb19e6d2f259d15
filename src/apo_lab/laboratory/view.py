"""Progress of the laboratory: a line at the start, for each run that begins or ends, with the time that is left."""

import time
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

from omegaconf import DictConfig

from apo_lab.editions.protocol import Protocol
from apo_lab.laboratory.jobs import Job, StageProgress, progress
from apo_lab.laboratory.published import read_runs
from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration


class LaboratoryView:
    """Prints what is run: the edition, then a line when a run or a base model begins and when it ends.

    Args:
        cfg: of the command.
        protocol: the edition.
        identity: `commit` and `registration` of the rows to come.
    """

    def __init__(self, cfg: DictConfig, protocol: Protocol, identity: Mapping[str, str]) -> None:
        self.cfg = cfg
        self.protocol = protocol
        self.registration = identity["registration"]
        self.started: dict[Job, float] = {}
        self.seconds: list[float] = []
        say(f"edition {protocol.name}, registration {self.registration}")
        say(f"commit {identity['commit'] or 'none'}, {cfg.processes} processes, tables in {cfg.tables}")
        self.show_progress()

    def show_progress(self) -> None:
        """Print how many runs of each stage are done."""
        for stage in self._progress():
            say(f"  {stage.name:<12} {stage.num_done:>4} of {stage.num_runs:>4} runs done")

    def begin(self, job: Job) -> None:
        """Record that a run has started."""
        self.started[job] = time.monotonic()
        say(f"{_name(job)} begins")

    def show_running(self) -> None:
        """Print which runs are going on, and for how long."""
        now = time.monotonic()
        runs = [f"{' '.join(_name(job).split())} for {duration(now - begun)}" for job, begun in self.started.items()]
        say(f"running: {'; '.join(runs)}")

    def end(self, job: Job, *, is_failed: bool) -> None:
        """Record that a run has finished or failed."""
        seconds = time.monotonic() - self.started.pop(job)
        if is_failed or job.arm is None:
            say(f"{_name(job)} {'failed' if is_failed else 'done'} in {duration(seconds)}")
            return
        self.seconds.append(seconds)
        say(f"{_name(job)} done in {duration(seconds)}; {self._left()}")

    def _left(self) -> str:
        """Number of runs left, and the time they take if each takes the mean of those that this command has made."""
        num_left = sum(stage.num_runs - stage.num_done for stage in self._progress())
        return f"{num_left} left, about {duration(num_left * fmean(self.seconds) / self.cfg.processes)}"

    def _progress(self) -> list[StageProgress]:
        return progress(self.cfg, self.protocol, read_runs(Path(self.cfg.tables), self.registration))


def _name(job: Job) -> str:
    key = job.key
    settings = f" {key.variant}" if key.variant else ""
    return f"{key.world:<12} {key.method}{settings}" + (f", seed {key.seed}" if job.arm else "")

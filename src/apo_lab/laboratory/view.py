"""Progress of the laboratory: a line at the start, for each run that begins or ends, with the time that is left."""

import time
from collections.abc import Mapping
from pathlib import Path

from omegaconf import DictConfig

from apo_lab.editions.protocol import Protocol
from apo_lab.laboratory.jobs import Job, progress
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
        self.started: dict[Job, float] = {}
        self.seconds: dict[str, list[float]] = {}
        say(
            f"edition {protocol.name}, registration {identity['registration']}, commit {identity['commit'] or 'none'}, "
            f"{cfg.processes} processes, tables in {cfg.tables}"
        )
        self.show_progress()

    def show_progress(self) -> None:
        """Print how many runs of each stage are done."""
        for stage in progress(self.cfg, self.protocol, read_runs(Path(self.cfg.tables))):
            say(f"  {stage.name:<12} {stage.num_done:>4} of {stage.num_runs:>4} runs done")

    def begin(self, job: Job) -> None:
        """Record that a run has started."""
        self.started[job] = time.monotonic()
        say(f"{_name(job)} begins")

    def end(self, job: Job, *, is_failed: bool) -> None:
        """Record that a run has finished or failed."""
        seconds = time.monotonic() - self.started.pop(job)
        if is_failed or job.arm is None:
            say(f"{_name(job)} {'failed' if is_failed else 'done'} in {duration(seconds)}")
            return
        self.seconds.setdefault(job.world.family, []).append(seconds)
        say(f"{_name(job)} done in {duration(seconds)}; {self._left()}")

    def _left(self) -> str:
        """Number of runs left, and the time they take if each takes the mean of its family, or of all."""
        rows = read_runs(Path(self.cfg.tables))
        num_left = sum(stage.num_runs - stage.num_done for stage in progress(self.cfg, self.protocol, rows))
        known = [seconds for of_family in self.seconds.values() for seconds in of_family]
        left = num_left * sum(known) / len(known) / self.cfg.processes
        return f"{num_left} runs left, about {duration(left)}"


def _name(job: Job) -> str:
    key = job.key
    return (
        f"{job.stage:<10} {key.world:<12} {key.method:<22} {key.variant:<30} {f'seed {key.seed}' if job.arm else '':<9}"
    )

"""Progress of the laboratory: a line for each run, with the time that is left."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration

if TYPE_CHECKING:
    from apo_lab.laboratory.runs import Job


class LaboratoryView:
    """Prints a line when a base model begins, which takes minutes, and when a run ends.

    Args:
        jobs: all runs, base models left out.
        processes: number of concurrent processes.
    """

    def __init__(self, jobs: Sequence["Job"], processes: int) -> None:
        self.jobs = jobs
        self.processes = processes
        self.started: dict[Job, float] = {}
        self.failed: set[Job] = set()
        records = {job: job.finished() for job in jobs}
        self.seconds: dict[Job, float] = {job: record["seconds"] for job, record in records.items() if record}
        say(f"{len(self.seconds)} of {len(jobs)} runs are finished already")

    def begin(self, job: "Job") -> None:
        """Record that a run has started."""
        self.started[job] = time.monotonic()
        if job.is_base:
            say(f"{job.puzzle:<10} {job.method:<20} {'':<8} begins")

    def end(self, job: "Job", *, is_failed: bool) -> None:
        """Record that a run has finished or failed."""
        seconds = time.monotonic() - self.started.pop(job)
        if is_failed:
            self.failed.add(job)
        elif not job.is_base:
            self.seconds[job] = seconds
        left = f"; {len(self.seconds)} of {len(self.jobs)}, {self.left()} left" if not job.is_base else ""
        seed = f"seed {job.seed}" if job.seed else ""
        what = "failed" if is_failed else "done"
        say(f"{job.puzzle:<10} {job.method:<20} {seed:<8} {what} in {duration(seconds)}{left}")

    def left(self) -> str:
        """Estimated time until all runs are finished, from the durations of other runs of the puzzle."""
        seconds = 0.0
        for puzzle in {job.puzzle for job in self.jobs}:
            known = [taken for job, taken in self.seconds.items() if job.puzzle == puzzle]
            num_left = sum(job.puzzle == puzzle for job in self.jobs if job not in self.failed) - len(known)
            if num_left and not known:
                return "unknown time"
            seconds += num_left * sum(known) / max(1, len(known))
        return duration(seconds / self.processes)

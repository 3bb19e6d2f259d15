"""Progress of the laboratory on the terminal: a table of finished, running and waiting runs."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table

from apo_lightning.common.console import say

if TYPE_CHECKING:
    from apo_lab.laboratory.runs import Job


class LaboratoryView:
    """A live table on a terminal; otherwise one line for each run.

    Args:
        jobs: all runs, base models left out.
        processes: number of concurrent processes.
    """

    def __init__(self, jobs: Sequence["Job"], processes: int) -> None:
        self.jobs = jobs
        self.processes = processes
        self.running: dict[Job, float] = {}
        self.failed: set[Job] = set()
        self.seconds: dict[Job, float] = {}
        for job in jobs:
            if (record := job.finished()) is not None:
                self.seconds[job] = float(str(record["seconds"]))
        self.found = len(self.seconds)
        self.started = time.monotonic()
        self.live = Live(console=Console(file=sys.stdout), auto_refresh=False) if sys.stdout.isatty() else None

    def __enter__(self) -> "LaboratoryView":
        if self.found:
            say(f"{self.found} of {len(self.jobs)} runs are finished already")
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live is not None:
            self.refresh()
            self.live.stop()

    def begin(self, job: "Job") -> None:
        """Record that a run has started."""
        self.running[job] = time.monotonic()

    def end(self, job: "Job", *, is_failed: bool) -> None:
        """Record that a run has finished or failed."""
        seconds = time.monotonic() - self.running.pop(job)
        if is_failed:
            self.failed.add(job)
        elif not job.is_base:
            self.seconds[job] = seconds
        if self.live is None:
            what = "failed" if is_failed else "done"
            left = f"; {len(self.seconds)} of {len(self.jobs)}, {self.left()} left" if not job.is_base else ""
            seed = f"seed {job.seed}" if job.seed else ""
            say(f"{job.puzzle:<10} {job.method:<20} {seed:<8} {what} in {clock(seconds)}{left}")

    def refresh(self) -> None:
        """Redraw the table."""
        if self.live is not None:
            self.live.update(self.table(), refresh=True)

    def left(self) -> str:
        """Estimated time until all runs are finished, from the durations of other runs of the puzzle."""
        seconds = 0.0
        for job in self.jobs:
            if job in self.seconds or job in self.failed:
                continue
            known = [taken for other, taken in self.seconds.items() if other.puzzle == job.puzzle]
            if not known:
                return "unknown time"
            spent = time.monotonic() - self.running[job] if job in self.running else 0.0
            seconds += max(0.0, sum(known) / len(known) - spent)
        return clock(seconds / self.processes)

    def table(self) -> Table:
        """A row a method, a column a puzzle."""
        puzzles = list(dict.fromkeys(job.puzzle for job in self.jobs))
        bases = [job for job in self.running if job.is_base]
        left = f"making base models ({', '.join(job.puzzle for job in bases)})" if bases else f"{self.left()} left"
        table = Table(
            title=f"{len(self.seconds)} of {len(self.jobs)} runs, {clock(time.monotonic() - self.started)}, {left}",
            box=None,
            title_justify="left",
        )
        table.add_column("method")
        for puzzle in puzzles:
            table.add_column(puzzle)
        for method in dict.fromkeys(job.method for job in self.jobs):
            table.add_row(method, *(self._cell(method, puzzle) for puzzle in puzzles))
        return table

    def _cell(self, method: str, puzzle: str) -> str:
        marks = []
        for job in self.jobs:
            if (job.method, job.puzzle) != (method, puzzle):
                continue
            if job in self.failed:
                marks.append("[red]failed[/red]")
            elif job in self.seconds:
                marks.append(f"[green]{clock(self.seconds[job])}[/green]")
            elif job in self.running:
                marks.append(f"[bold]{clock(time.monotonic() - self.running[job])}…[/bold]")
            else:
                marks.append("[dim]·[/dim]")
        return "  ".join(marks)


def clock(seconds: float) -> str:
    """Minutes and seconds.

    Example:
        >>> clock(75.4), clock(3725.0)
        ('1:15', '1:02:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"

"""The columns that tables of accuracies share: Pass@1 and Pass@K of a benchmark, and their averages."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import Cell, Column, left, right
from apo_lab.reporting.tables.cells import share_cell
from apo_lab.reporting.tables.series import Series, average, interval_note, num_seeds

SEEDS = Column("Seeds")


def seeds_cell(item: Series, names: Iterable[str] | None = None) -> Cell:
    """Training seeds behind a row; of all its benchmarks, or of some."""
    chosen = item.by_benchmark if names is None else [name for name in names if name in item.by_benchmark]
    return Cell(num_seeds(item.by_benchmark[name] for name in chosen))


def accuracy_note(items: Sequence[Series]) -> str:
    """How to read such a table."""
    return f"Per cent. In brackets: {interval_note(items)}. Bold: best of its block."


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Pass@1 and Pass@K [%] of each benchmark, then averages where a table has them."""

    benchmarks: Sequence[str]
    budget: Mapping[str, int]
    """K of each benchmark."""
    has_averages: bool

    def columns(self, first: str) -> tuple[Column, ...]:
        """All columns of the table, the first with a title of its own."""
        found = [*left(first), SEEDS]
        for name in self.benchmarks:
            found += right(*(f"Pass@{k}" for k in self._ks(name)), group=benchmark_name(name))
        return (*found, *(right("Pass@1", "Pass@K", group="Average") if self.has_averages else ()))

    def cells(self, item: Series, averaged: Iterable[str]) -> tuple[Cell, ...]:
        """The cells of a row but its first; averages are over the benchmarks `averaged`."""
        found, names = [seeds_cell(item)], list(averaged)
        for name in self.benchmarks:
            metrics = item.by_benchmark[name].metrics if name in item.by_benchmark else {}
            found += [share_cell(metrics.get(f"pass@{k}")) for k in self._ks(name)]
        if self.has_averages:
            found += [share_cell(average(item, names, metric)) for metric in ("pass@1", "pass@K")]
        return tuple(found)

    def _ks(self, name: str) -> list[int]:
        return sorted({1, self.budget[name]})

"""The columns that tables of accuracies share: Pass@1 and Pass@K of a benchmark, their averages, gains."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import Cell, Column, Measurement, TableRow, left, right
from apo_lab.reporting.tables.cells import PER_CENT, number_cell, share_cell
from apo_lab.reporting.tables.series import Series, average, budgets, interval_note, missing_note, num_seeds

SEEDS = Column("Seeds")


def seeds_cell(item: Series, names: Iterable[str] | None = None) -> Cell:
    """Training seeds behind a row; of all its benchmarks, or of some."""
    chosen = item.by_benchmark if names is None else [name for name in names if name in item.by_benchmark]
    return Cell(num_seeds(item.by_benchmark[name] for name in chosen))


def gain_cell(item: Series, name: str) -> Cell:
    """Pass@1 minus the untrained model's on the same problems, in points of per cent."""
    measured = item.by_benchmark.get(name)
    return number_cell(measured.metrics.get("gain") if measured else None, scale=PER_CENT, decimals=2, signed=True)


@dataclass(frozen=True, slots=True)
class Accuracies:
    """Pass@1 and Pass@K [%] of each benchmark, then averages and held-out gains where a table has them."""

    benchmarks: Sequence[str]
    budget: Mapping[str, int]
    """K of each benchmark."""
    has_averages: bool
    is_held_out: bool

    @classmethod
    def of(cls, chosen: Sequence[Measurement], benchmarks: Sequence[str], *, has_averages: bool) -> "Accuracies":
        """The columns for these measurements."""
        return cls(benchmarks, budgets(chosen), has_averages, any(item.held_out for item in chosen))

    @property
    def _averaged(self) -> tuple[str, ...]:
        several_k = any(self.budget[name] > 1 for name in self.benchmarks)
        return (("Pass@1", "Pass@K") if several_k else ("Pass@1",)) if self.has_averages else ()

    def columns(self, first: str) -> tuple[Column, ...]:
        """All columns of the table, the first with a title of its own."""
        found = [*left(first), SEEDS]
        for name in self.benchmarks:
            found += right(*(f"Pass@{k}" for k in self._ks(name)), group=benchmark_name(name))
        found += right(*self._averaged, group="Average")
        return (*found, *(Column("Gain", group=benchmark_name(n)) for n in self.benchmarks if self.is_held_out))

    def cells(self, item: Series, averaged: Iterable[str]) -> tuple[Cell, ...]:
        """The cells of a row but its first; averages are over the benchmarks `averaged`."""
        found, names = [seeds_cell(item)], list(averaged)
        for name in self.benchmarks:
            metrics = item.by_benchmark[name].metrics if name in item.by_benchmark else {}
            found += [share_cell(metrics.get(f"pass@{k}")) for k in self._ks(name)]
        for title in self._averaged:
            metric_of = {name: "pass@1" if title == "Pass@1" else f"pass@{self.budget[name]}" for name in names}
            found.append(share_cell(average(item, names, metric_of)))
        return (*found, *(gain_cell(item, name) for name in self.benchmarks if self.is_held_out))

    def notes(self, rows: Sequence[TableRow], items: Sequence[Series]) -> list[str]:
        """How to read the numbers; nothing for an empty table."""
        if not rows:
            return []
        cells = [cell for row in rows for cell in row.cells]
        bracket = f" In brackets: {interval_note(items)}." if any(cell.interval for cell in cells) else ""
        bold = " Bold: best of its block." if any(cell.bold for cell in cells) else ""
        source = "No evaluations were found: the training runs' own held-out problems; gain over the untrained model."
        return [f"Per cent.{bracket}{bold}", *missing_note(items), *([source] if self.is_held_out else [])]

    def _ks(self, name: str) -> tuple[int, ...]:
        return (1, self.budget[name]) if self.budget[name] > 1 else (1,)

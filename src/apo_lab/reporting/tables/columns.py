"""The columns that tables of accuracies share: Pass@1 and Pass@K of a benchmark, and their averages."""

from collections.abc import Iterable, Mapping, Sequence

from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import Cell, Column, Measurement, TableRow
from apo_lab.reporting.tables.cells import PER_CENT, number_cell, share_cell
from apo_lab.reporting.tables.series import Series, average, interval_note, missing_note, num_seeds
from apo_lightning.evaluation.records import Estimate

SEEDS = Column(name="Seeds")


def seeds_cell(item: Series, names: Iterable[str] | None = None) -> Cell:
    """Training seeds behind a row; of all its benchmarks, or of some."""
    chosen = item.by_benchmark if names is None else [name for name in names if name in item.by_benchmark]
    return Cell(text=num_seeds(item.by_benchmark[name] for name in chosen))


def accuracy_columns(benchmark: str, k: int) -> list[Column]:
    """Pass@1, and Pass@K where K is above 1."""
    return [Column(name=f"Pass@{size}", group=benchmark_name(benchmark)) for size in _sizes(k)]


def accuracy_cells(measured: Measurement | None, k: int) -> list[Cell]:
    """The cells under `accuracy_columns`, in per cent."""
    metrics: Mapping[str, Estimate] = measured.metrics if measured else {}
    return [share_cell(metrics.get(f"pass@{size}")) for size in _sizes(k)]


def average_columns(several_k: bool) -> list[Column]:
    """Columns of the averages of Pass@1, and of Pass@K unless every K is 1."""
    return [Column(name=name, group="Average") for name in (("Pass@1", "Pass@K") if several_k else ("Pass@1",))]


def average_cells(item: Series, names: Iterable[str], budget: Mapping[str, int], several_k: bool) -> list[Cell]:
    """The cells under `average_columns`, in per cent."""
    names = list(names)
    first = share_cell(average(item, names, dict.fromkeys(names, "pass@1")))
    every = share_cell(average(item, names, {name: f"pass@{budget[name]}" for name in names}))
    return [first, every] if several_k else [first]


def gain_columns(names: Iterable[str]) -> list[Column]:
    """A column for the gain on each held-out set."""
    return [Column(name="Gain", group=benchmark_name(name)) for name in names]


def gain_cells(item: Series, names: Iterable[str]) -> list[Cell]:
    """Pass@1 minus the untrained model's on the same problems, in points of per cent."""
    measured = (item.by_benchmark.get(name) for name in names)
    gains = (measurement.metrics.get("gain") if measurement else None for measurement in measured)
    return [number_cell(gain, scale=PER_CENT, decimals=2, signed=True) for gain in gains]


def reading_notes(rows: Sequence[TableRow], items: Sequence[Series], *, held_out: bool) -> list[str]:
    """How to read the numbers of a table of accuracies; nothing for an empty one."""
    cells = [cell for row in rows for cell in row.cells]
    bracket = f" In brackets: {interval_note(items)}." if any(cell.interval for cell in cells) else ""
    bold = " Bold: best of its block." if any(cell.bold for cell in cells) else ""
    notes = [f"Per cent.{bracket}{bold}", *missing_note(items)] if rows else []
    if rows and held_out:
        notes.append(
            "No evaluations were found: the training runs' own held-out problems; gain over the untrained model."
        )
    return notes


def _sizes(k: int) -> tuple[int, ...]:
    return (1, k) if k > 1 else (1,)

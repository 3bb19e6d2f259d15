"""Numbers as cells, and the best of a column."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Float

from apo_lightning.evaluation.records import Estimate
from apo_report.names import BASE
from apo_report.records import Cell, Column, Table, TableRow
from apo_report.tables.series import Series

EMPTY = Cell("–")
PER_CENT = 100.0
SEEDS = Column("Seeds")


def number_cell(estimate: Estimate | None, *, scale: float = 1.0, decimals: int = 3, signed: bool = False) -> Cell:
    """A number and its interval; that of a number of two decimals has one: `45.68`, `[41.0, 50.2]`."""
    if estimate is None or not math.isfinite(estimate.value):
        return EMPTY
    sign = "+" if signed else ""
    text = f"{estimate.value * scale:{sign}.{decimals}f}"
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return Cell(text, estimate.value * scale)
    low, high = estimate.low * scale, estimate.high * scale
    fewer = 1 if decimals == 2 else decimals
    interval_text = f"[{low:{sign}.{fewer}f}, {high:{sign}.{fewer}f}]"
    return Cell(text, estimate.value * scale, (low, high), interval_text)


def share_cell(estimate: Estimate | None) -> Cell:
    """A fraction as per cent with two decimals, as the paper prints it."""
    return number_cell(estimate, scale=PER_CENT, decimals=2)


def points_cell(estimate: Estimate | None) -> Cell:
    """A difference of fractions in points of per cent, with its sign."""
    return number_cell(estimate, scale=PER_CENT, decimals=2, signed=True)


def mean_cell(
    values: Float[np.ndarray, "runs"],
    *,
    decimals: int = 1,
    signed: bool = False,
    count: int | None = None,
    marked: bool = False,
) -> Cell:
    """Mean ± standard error of the values that are there, and a number of runs: `88.0 ± 0.7 (10)`."""
    found = values[np.isfinite(values)]
    if not len(found):
        return EMPTY
    text = f"{found.mean():{'+' if signed else ''}.{decimals}f}"
    text += f" ± {standard_error(found):.{decimals}f}" if len(found) > 1 else ""
    text += "" if count is None else f" ({count})"
    return Cell(text, float(found.mean()), marked=marked)


def standard_error(values: Float[np.ndarray, "runs"]) -> float:
    """That of their mean; 0 of a single one."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def p_cell(p_value: float, level: float = 0.0) -> Cell:
    """A p-value, bold up to the level."""
    if not math.isfinite(p_value):
        return EMPTY
    return Cell("< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}", p_value, bold=p_value <= level)


def seeds_cell(item: Series, names: Iterable[str] | None = None) -> Cell:
    """Training seeds behind a row, of all its benchmarks or of some: `3`, `2 to 3`; a dash where nobody trained."""
    measured = [item.by_benchmark[name] for name in (item.by_benchmark if names is None else names)]
    counts = {len(each.policies) for each in measured if each.method != BASE or each.seeds}
    return Cell(" to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else "–")


def with_best_bold(rows: Sequence[TableRow], lower_is_better: Iterable[int] = ()) -> tuple[TableRow, ...]:
    """The rows with the best number of each column bold, within each section; ties as printed are bold together.

    Nothing is bold in a column in which fewer than two rows have a number, or all have the same.
    """
    inverted, marked = set(lower_is_better), []
    for _, group in itertools.groupby(rows, key=lambda row: row.section):
        section = list(group)
        columns = zip(*(row.cells for row in section), strict=True)
        bold = [_best_bold(column, place in inverted) for place, column in enumerate(columns)]
        marked += [replace(row, cells=cells) for row, cells in zip(section, zip(*bold, strict=True), strict=True)]
    return tuple(marked)


def without_absent(table: Table) -> Table:
    """The table without columns in which no row has anything, and without notes on what it does not have.

    `Bold: …`, `†: …` and a column's title and a colon begin a note on these.
    """
    cells = [cell for row in table.rows for cell in row.cells]
    filled = [any(row.cells[place].text != EMPTY.text for row in table.rows) for place in range(len(table.columns))]
    absent = {column.title for column, is_filled in zip(table.columns, filled, strict=True) if not is_filled}
    absent |= {"†", "Bold"} - {cell.mark for cell in cells} - {"Bold" for cell in cells if cell.bold}
    return replace(
        table,
        columns=tuple(itertools.compress(table.columns, filled)),
        rows=tuple(replace(row, cells=tuple(itertools.compress(row.cells, filled))) for row in table.rows),
        notes=tuple(note for note in table.notes if note.partition(":")[0] not in absent),
    )


def _best_bold(cells: Sequence[Cell], is_lower_better: bool) -> Sequence[Cell]:
    numbers = {cell.value: cell.text for cell in cells if cell.value is not None}
    if len(set(numbers.values())) < 2:
        return cells
    best = numbers[min(numbers) if is_lower_better else max(numbers)]
    return [replace(cell, bold=cell.value is not None and cell.text == best) for cell in cells]

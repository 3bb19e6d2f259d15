"""Numbers as cells, and the best of a column."""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from apo_lab.reporting.records import Cell, TableRow
from apo_lightning.evaluation.records import Estimate

EMPTY = Cell("–")
PER_CENT = 100.0


def number_cell(estimate: Estimate | None, *, scale: float = 1.0, decimals: int = 3, signed: bool = False) -> Cell:
    """A number and its interval; that of a number of two decimals has one.

    Example:
        >>> cell = number_cell(Estimate(value=0.4568, low=0.41, high=0.502), scale=100.0, decimals=2)
        >>> cell.text, cell.interval_text
        ('45.68', '[41.0, 50.2]')
    """
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


def _best_bold(cells: Sequence[Cell], is_lower_better: bool) -> Sequence[Cell]:
    numbers = {cell.value: cell.text for cell in cells if cell.value is not None}
    if len(set(numbers.values())) < 2:
        return cells
    best = numbers[min(numbers) if is_lower_better else max(numbers)]
    return [replace(cell, bold=cell.value is not None and cell.text == best) for cell in cells]

"""Numbers as cells, and the best of a column."""

import math
from collections import defaultdict
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
    inverted = set(lower_is_better)
    bold: set[tuple[int, int]] = set()
    sections: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        sections[row.section].append(index)
    for indices in sections.values():
        for column in range(len(rows[indices[0]].cells)):
            cells = {index: rows[index].cells[column] for index in indices}
            values = {index: cell.value for index, cell in cells.items() if cell.value is not None}
            if len({cells[index].text for index in values}) > 1:
                best = min(values.values()) if column in inverted else max(values.values())
                text = next(cells[index].text for index, value in values.items() if value == best)
                bold |= {(index, column) for index in values if cells[index].text == text}
    return tuple(
        replace(row, cells=tuple(replace(cell, bold=(i, j) in bold) for j, cell in enumerate(row.cells)))
        for i, row in enumerate(rows)
    )

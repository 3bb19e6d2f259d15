"""How far each method lies below the highest one at equal pass@1, where that is most: no method may be above all."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from apo_lab.reporting.laboratory.levels import EXPLORED, Group
from apo_lab.reporting.laboratory.reading import arm_name
from apo_lab.reporting.records import Cell, Table, TableRow, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY


def shortfall_table(found: Sequence[Group]) -> Table:
    """A row for each arm, averages included: its largest distance below the highest arm, in each group of worlds."""
    columns = {group.name: _shortfalls(group) for group in found}
    arms = dict.fromkeys(name for cells in columns.values() for name in cells)
    made: list[tuple[float, TableRow]] = []
    for arm in arms:
        cells = [cells.get(arm, EMPTY) for cells in columns.values()]
        most = max(np.inf if cell.value is None or cell.marked else cell.value for cell in cells)
        made.append((most, row_of(arm_name(arm), *cells, Cell(f"{most:.1f}", most) if np.isfinite(most) else EMPTY)))
    return Table(
        name="lab_shortfalls",
        title=f"{EXPLORED}: how far each arm lies below the highest one at equal pass@1, at most [points of pass@64]",
        columns=(*left("Arm"), *right(*columns, "Most of all")),
        rows=tuple(row for _, row in sorted(made, key=lambda each: each[0])),
        notes=(
            "Over the levels of pass@1 up to L* that all runs of an arm reach: where the distance of its mean from the "
            "highest mean is largest, with that arm in brackets. An arm at 0 would be above all others everywhere. The "
            "highest of several means is too high by chance, and so is each distance.",
            "†: not all of its runs reach L*; higher levels are left out, and the arm has no last column.",
        ),
    )


def _shortfalls(group: Group) -> dict[str, Cell]:
    levels = group.grid[group.grid <= group.level]
    names = [*group.arms]
    means = np.stack([_means(group, name, levels) for name in names])
    found: dict[str, Cell] = {}
    for name, own in zip(names, means, strict=True):
        shared = np.flatnonzero(np.isfinite(own))
        if len(shared):
            below = 100 * (np.nanmax(means[:, shared], axis=0) - own[shared])
            place = shared[below.argmax()]
            highest = arm_name(names[np.nanargmax(means[:, place])])
            at = f" at {100 * levels[place]:.1f} ({highest})" if below.max() else ""
            found[name] = Cell(f"{below.max():.1f}{at}", below.max().item(), marked=shared[-1] < len(levels) - 1)
    return found


def _means(group: Group, name: str, levels: Float[NDArray[np.float64], "levels"]) -> Float[NDArray[np.float64], "_"]:
    """The mean of pass@64 over runs, NaN where one does not reach the level."""
    return np.concatenate([*group.curves(name, levels).values()], axis=1).mean(axis=1)

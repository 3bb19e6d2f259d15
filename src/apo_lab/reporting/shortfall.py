"""How far each method lies below the highest one at equal pass@1, where that is most: no method may be above all."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from apo_lab.reporting.levels import EXPLORED, Group
from apo_lab.reporting.reading import arm_name
from apo_report.records import Cell, Table, TableRow, left, right, row_of
from apo_report.tables.cells import EMPTY

ROUNDING = 1e-9
"""Of levels: without it, L* itself could be left out."""


def shortfall_table(found: Sequence[Group]) -> Table:
    """A row for each arm, averages included: its largest distance below the highest one, by group and by world."""
    columns = {group.name: _shortfalls(group) for group in found}
    within = {each.name: _shortfalls(each) for group in found for each in _single_worlds(group)}
    arms = dict.fromkeys(name for cells in columns.values() for name in cells)
    made: list[tuple[float, TableRow]] = []
    for arm in arms:
        cells = [cells.get(arm, EMPTY) for cells in columns.values()]
        most = max(np.inf if cell.value is None or cell.marked else cell.value for cell in cells)
        of_all = Cell(f"{most:.1f}", most) if np.isfinite(most) else EMPTY
        alone = (cells.get(arm, EMPTY) for cells in within.values())
        made.append((most, row_of(arm_name(arm), *cells, of_all, *alone)))
    return Table(
        name="lab_shortfalls",
        title=f"{EXPLORED}: how far each arm lies below the highest one at equal pass@1, at most [points of pass@64]",
        columns=(*left("Arm"), *right(*columns, "Most of all"), *right(*within, group="In one world")),
        rows=tuple(row for _, row in sorted(made, key=lambda each: each[0])),
        notes=(
            "Over the levels of pass@1 up to L* that all runs of an arm reach: where the distance of its mean from the "
            "highest mean is largest, with that arm in brackets. An arm at 0 would be above all others everywhere. The "
            "highest of several means is too high by chance, and so is each distance.",
            "†: not all of its runs reach L*: it is compared up to the last level that all of them reach.",
        ),
    )


def _single_worlds(group: Group) -> list[Group]:
    """Each world of a group as a group of its own; none where it is the only one."""
    worlds = group.worlds if len(group.worlds) > 1 else ()
    arms = {world: {name: arm.within([world]) for name, arm in group.arms.items()} for world in worlds}
    return [replace(group, name=world, worlds=(world,), arms=arms[world]) for world in worlds]


def _shortfalls(group: Group) -> dict[str, Cell]:
    grid = np.union1d(group.grid, group.levels)  # `group.grid` steps over L*
    levels = grid[grid < group.level + ROUNDING]
    names = [*group.arms]
    means = np.stack([arm.of_all_worlds(levels).mean(axis=1) for arm in group.arms.values()])  # NaN where a run is not
    found: dict[str, Cell] = {}
    for name, own in zip(names, means, strict=True):
        if len(shared := np.flatnonzero(np.isfinite(own))):
            below = 100 * (np.nanmax(means[:, shared], axis=0) - own[shared])
            place = shared[below.argmax()]
            highest = arm_name(names[np.nanargmax(means[:, place])])
            at = f" at {100 * levels[place]:.1f} ({highest})" if below.max() else ""
            found[name] = Cell(f"{below.max():.1f}{at}", below.max().item(), marked=shared[-1] < len(levels) - 1)
    return found

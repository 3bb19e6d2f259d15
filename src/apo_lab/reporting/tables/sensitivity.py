"""How much a method depends on its settings: one row for each value that a sweep gave them."""

from collections.abc import Callable, Mapping, Sequence

from apo_lab.reporting.axes import Defaults, plain, value_place
from apo_lab.reporting.identity import blocks_in_order
from apo_lab.reporting.names import METHODS, axis_name, axis_place, in_benchmark_order, in_method_order, slug
from apo_lab.reporting.records import Cell, Column, Measurement, Table, TableRow
from apo_lab.reporting.tables.cells import with_best_bold
from apo_lab.reporting.tables.columns import (
    SEEDS,
    accuracy_cells,
    accuracy_columns,
    average_cells,
    average_columns,
    gain_cells,
    gain_columns,
    reading_notes,
    seeds_cell,
)
from apo_lab.reporting.tables.series import (
    Series,
    budgets,
    common_benchmarks,
    data_notes,
    evaluated_or_held_out,
    series,
)


def sensitivity_table(
    measurements: Sequence[Measurement], *, block: str, method: str, defaults: Defaults | None = None
) -> Table:
    """Pass@1 and Pass@K [%] against each axis that the runs of one method and model vary.

    A block holds the runs that differ from the defaults along one axis alone (or along the same several), in the order
    of their values, and the default run among them, highlighted.

    Source: the paper's table of hyper-parameter sensitivity.

    Args:
        measurements: of which those of this block and method are taken.
        block: a model, and how it was measured where that differs.
        method: as tables print it.
        defaults: the same as `measurements` was given; without it no run is the default.
    """
    chosen = [item for item in evaluated_or_held_out(measurements) if (item.block, item.method) == (block, method)]
    items = series(chosen)
    names = in_benchmark_order(common_benchmarks(items))
    budget = budgets(chosen)
    held_out = any(item.held_out for item in chosen)
    several_k = any(budget[name] > 1 for name in names)

    def cells_of(item: Series) -> list[Cell]:
        cells = [seeds_cell(item)]
        cells += [cell for name in names for cell in accuracy_cells(item.by_benchmark[name], budget[name])]
        cells += average_cells(item, names, budget, several_k) if len(names) > 1 else []
        return cells + (gain_cells(item, names) if held_out else [])

    columns = [
        Column(name="Setting", align="left"),
        SEEDS,
        *(column for n in names for column in accuracy_columns(n, budget[n])),
    ]
    columns += average_columns(several_k) if len(names) > 1 else []
    columns += gain_columns(names) if held_out else []
    rows = with_best_bold(_rows(items, (defaults or {}).get(_algo(method), {}), cells_of))
    return Table(
        name=f"sensitivity_{slug(block)}_{slug(method)}",
        title=f"Sensitivity of {method} on {block}",
        columns=tuple(columns),
        rows=rows,
        notes=(*reading_notes(rows, items, held_out=held_out), *data_notes(chosen)),
    )


def swept_methods(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """(block, method) of everything measured with more than one setting: what a sensitivity table can be made of."""
    settings: dict[tuple[str, str], set[tuple[tuple[str, str], ...]]] = {}
    chosen = evaluated_or_held_out(measurements)
    for item in chosen:
        settings.setdefault((item.block, item.method), set()).add(tuple(item.settings.items()))
    blocks, methods = blocks_in_order(chosen), in_method_order(item.method for item in chosen)
    found = [key for key, values in settings.items() if len(values) > 1]
    return sorted(found, key=lambda key: (blocks.index(key[0]), methods.index(key[1])))


def _rows(
    items: Sequence[Series], usual: Mapping[str, str], cells_of: Callable[[Series], list[Cell]]
) -> list[TableRow]:
    """A block for each set of keys along which some run departs, single axes before their combinations."""
    blocks = sorted({tuple(item.settings) for item in items if item.settings}, key=_block_place)
    default = [item for item in items if not item.settings]
    rows = []
    for keys in blocks:
        valued = [
            ([item.settings.get(key, usual.get(key, "")) for key in keys], item)
            for item in (*default, *(item for item in items if tuple(item.settings) == keys))
        ]
        for values, item in sorted(valued, key=lambda pair: [value_place(value) for value in pair[0]]):
            is_default = not item.settings
            label = ", ".join(f"{axis_name(key)} = {plain(value)}" for key, value in zip(keys, values, strict=True))
            remarks = [*(["default"] if is_default else []), *([item.which] if item.which else [])]
            first = Cell(text=f"{label} ({', '.join(remarks)})" if remarks else label)
            section = ", ".join(axis_name(key) for key in keys)
            rows.append(TableRow(cells=(first, *cells_of(item)), section=f"Varying {section}", highlight=is_default))
    return rows


def _algo(method: str) -> str:
    return next((algo for algo, name in METHODS.items() if name == method), method)


def _block_place(keys: Sequence[str]) -> tuple[int, list[tuple[int, str]]]:
    return len(keys), [axis_place(key) for key in keys]

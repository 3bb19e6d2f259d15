"""Sensitivity of a method to its settings: one row for each value of a sweep."""

from collections.abc import Callable, Mapping, Sequence

from apo_lab.reporting.axes import Defaults, plain, value_place
from apo_lab.reporting.identity import blocks_in_order
from apo_lab.reporting.names import AXES, BENCHMARKS, METHODS, algo_of, axis_name, in_order, slug
from apo_lab.reporting.records import Cell, Measurement, Table, TableRow, row_of
from apo_lab.reporting.tables.cells import with_best_bold
from apo_lab.reporting.tables.columns import Accuracies, accuracy_note
from apo_lab.reporting.tables.series import (
    Series,
    budgets,
    common_benchmarks,
    data_notes,
    evaluated,
    missing_note,
    series_of,
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
    items = series_of(measurements, block, method)
    names = in_order(common_benchmarks(items), BENCHMARKS)
    every = [measured for item in items for measured in item.by_benchmark.values()]
    accuracies = Accuracies(names, budgets(every), has_averages=len(names) > 1)
    usual = (defaults or {}).get(algo_of(method), {})
    rows = with_best_bold(_rows(items, usual, lambda item: accuracies.cells(item, names)))
    return Table(
        name=f"sensitivity_{slug(block)}_{slug(method)}",
        title=f"Sensitivity of {method} on {block}",
        columns=accuracies.columns("Setting"),
        rows=rows,
        notes=(accuracy_note(items), *missing_note(items), *data_notes(every)),
    )


def swept_methods(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """(block, method) of everything measured with more than one setting: what a sensitivity table can be made of."""
    settings: dict[tuple[str, str], set[tuple[tuple[str, str], ...]]] = {}
    chosen = evaluated(measurements) or measurements
    for item in chosen:
        settings.setdefault((item.block, item.method), set()).add(tuple(item.settings.items()))
    blocks, methods = blocks_in_order(chosen), in_order((item.method for item in chosen), METHODS.values())
    found = [key for key, values in settings.items() if len(values) > 1]
    return sorted(found, key=lambda key: (blocks.index(key[0]), methods.index(key[1])))


def _rows(
    items: Sequence[Series], usual: Mapping[str, str], cells_of: Callable[[Series], tuple[Cell, ...]]
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
            first = f"{label} ({', '.join(remarks)})" if remarks else label
            section = f"Varying {', '.join(map(axis_name, keys))}"
            rows.append(row_of(first, *cells_of(item), section=section, highlight=is_default))
    return rows


def _block_place(keys: Sequence[str]) -> tuple[int, list[int], Sequence[str]]:
    return len(keys), [list(AXES).index(key) if key in AXES else len(AXES) for key in keys], keys

"""Sensitivity of a method to its settings: one row for each value of a sweep."""

from collections.abc import Mapping, Sequence

from apo_lab.reporting.axes import Defaults, plain, value_place
from apo_lab.reporting.identity import blocks_in_order
from apo_lab.reporting.names import AXES, BENCHMARKS, METHODS, algo_of, axis_name, in_order, slug
from apo_lab.reporting.records import Measurement, Table, row_of
from apo_lab.reporting.tables.cells import HOW_TO_READ, Accuracies, with_best_bold
from apo_lab.reporting.tables.series import (
    Series,
    budgets,
    common_benchmarks,
    data_notes,
    evaluated,
    series_of,
)

Variants = Mapping[tuple[str, ...], Sequence[tuple[tuple[str, ...], Series]]]
"""Keys of settings → the values of each, and what was measured with them, by value."""


def sensitivity_table(
    measurements: Sequence[Measurement], *, block: str, method: str, defaults: Defaults | None = None
) -> Table:
    """Pass@1 and Pass@K [%] against each axis that the runs of one method and model vary.

    A block holds the runs that differ from the defaults along one axis alone (or along the same several), in the order
    of their values, and the default run among them, highlighted.

    Source: the paper's table of hyper-parameter sensitivity.
    """
    items = series_of(measurements, block, method)
    names = in_order(common_benchmarks(items).get(block, ()), BENCHMARKS)
    every = [measured for item in items for measured in item.by_benchmark.values()]
    accuracies = Accuracies(names, budgets(every), has_averages=len(names) > 1)
    rows = []
    for keys, variants in variants_of(items, (defaults or {}).get(algo_of(method), {})).items():
        for values, item in variants:
            label = ", ".join(f"{axis_name(key)} = {value}" for key, value in zip(keys, values, strict=True))
            remarks = ", ".join(filter(None, ("" if item.head.settings else "default", item.head.which)))
            first = f"{label} ({remarks})" if remarks else label
            section = f"Varying {', '.join(map(axis_name, keys))}"
            rows.append(
                row_of(first, *accuracies.cells(item, names), section=section, highlight=not item.head.settings)
            )
    return Table(
        name=f"sensitivity_{slug(block)}_{slug(method)}",
        title=f"Sensitivity of {method} on {block}",
        columns=accuracies.columns("Setting"),
        rows=with_best_bold(rows),
        notes=(HOW_TO_READ, *data_notes(every)),
    )


def swept_methods(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """(block, method) of everything measured with more than one setting: what a sensitivity table can be made of."""
    settings: dict[tuple[str, str], set[tuple[tuple[str, str], ...]]] = {}
    chosen = evaluated(measurements) or measurements
    for item in chosen:
        settings.setdefault((item.block, item.method), set()).add(tuple(item.settings.items()))
    blocks = blocks_in_order(chosen)
    methods = in_order((item.method for item in chosen), METHODS.values())
    found = [key for key, values in settings.items() if len(values) > 1]
    return sorted(found, key=lambda key: (blocks.index(key[0]), methods.index(key[1])))


def variants_of(items: Sequence[Series], usual: Mapping[str, str]) -> Variants:
    """The runs along each set of keys in which some run departs from its defaults, and the default run among them.

    Single keys before their combinations, the paper's first. A setting that `usual` lacks is "default" there.
    """
    axes = in_order((key for item in items for key in item.head.settings), AXES)
    sets = {tuple(item.head.settings) for item in items if item.head.settings}
    found = {}
    for keys in sorted(sets, key=lambda keys: (len(keys), [axes.index(key) for key in keys])):
        valued = [
            (tuple(plain(item.head.settings.get(key, usual.get(key, "default"))) for key in keys), item)
            for item in items
            if not item.head.settings or tuple(item.head.settings) == keys
        ]
        found[keys] = sorted(valued, key=lambda pair: [value_place(value) for value in pair[0]])
    return found

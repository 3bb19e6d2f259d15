"""Pass@1 and Pass@K: models × methods × benchmarks, sweeps of a setting, and training runs' own held-out problems."""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from apo_report.identity import blocks_in_order
from apo_report.names import AXES, BASE, BENCHMARKS, METHODS, algo_of, axis_name, in_order, slug
from apo_report.records import Cell, Column, Measurement, Table, TableRow, left, right, row_of
from apo_report.runs import Defaults, plain, value_place
from apo_report.tables.cells import EMPTY, SEEDS, points_cell, seeds_cell, share_cell, with_best_bold
from apo_report.tables.series import (
    INTERVALS,
    Series,
    at_budget,
    average,
    base_note,
    common_benchmarks,
    compared,
    data_notes,
    evaluated,
    series,
    series_of,
    unevaluated_note,
    without_variants,
)

HOW_TO_READ = (f"Per cent. In brackets: {INTERVALS}.", "Bold: best of its block, by however little.")
Variants = Mapping[tuple[str, ...], Sequence[tuple[tuple[str, ...], Series]]]
"""Keys of settings → the values of each, and what was measured with them, by value."""


class Accuracies:
    """Pass@1 and Pass@K [%] of each benchmark; then averages over those that all methods of a block have, if several.

    K is the benchmark's sample budget, to which `series` has cut all measurements.
    """

    def __init__(self, items: Sequence[Series]) -> None:
        self._common = common_benchmarks(items)
        self.has_averages = any(len(names) > 1 for names in self._common.values())
        budget = {name: own.num_samples for item in items for name, own in item.by_benchmark.items()}
        self._ks = {name: sorted({1, budget[name]}) for name in in_order(budget, BENCHMARKS)}

    def columns(self, first: str) -> tuple[Column, ...]:
        """All columns of the table, the first with a title of its own."""
        found = [*left(first), SEEDS]
        for name, ks in self._ks.items():
            found += right(*(f"Pass@{k}" for k in ks), group=BENCHMARKS[name])
        return (*found, *(right("Pass@1", "Pass@K", group="Average") if self.has_averages else ()))

    def cells(self, item: Series) -> list[Cell]:
        """The cells of a row but its first."""
        found = [seeds_cell(item)]
        for name, ks in self._ks.items():
            metrics = item.by_benchmark[name].metrics if name in item.by_benchmark else {}
            found += [share_cell(metrics.get(f"pass@{k}")) for k in ks]
        if self.has_averages:
            names = self._common[item.head.block]
            found += [share_cell(average(item, names, metric)) for metric in ("pass@1", "pass@K")]
        return found


def main_results(measurements: Sequence[Measurement]) -> Table:
    """Pass@1 and Pass@K [%] of every method on every benchmark, and their averages.

    A block for each model; several where its policies were measured in several ways, as at two temperatures. K is a
    benchmark's sample budget. Averages are over the benchmarks that all methods of the block have. A run that
    departs from its method's defaults is left to the sensitivity table, unless its method has no other.

    Source: the paper's table of main results.
    """
    chosen = evaluated(measurements)
    shown = without_variants(series(chosen))
    accuracies = Accuracies(shown)
    rows = [row_of(item.label, *accuracies.cells(item), section=item.head.block) for item in shown]
    missing = (*base_note(measurements), *unevaluated_note(measurements))
    averages = ("Average over the benchmarks that all methods of a block have.",) if accuracies.has_averages else ()
    return Table(
        name="main_results",
        title="Main results",
        columns=accuracies.columns("Method"),
        rows=with_best_bold(rows),
        notes=(*HOW_TO_READ, *averages, *data_notes(chosen), *missing),
    )


def held_out_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@1 and Pass@K [%] on the held-out problems of every training run, before and after it, and the gain.

    K is the largest number of samples a problem that all runs of a set drew; where it is 1, Pass@1 alone.
    The gain is of Pass@1, paired by problem.
    """
    held_out = [item for item in measurements if item.held_out]
    cut, rows = at_budget(held_out), list[TableRow]()
    for block, name in itertools.product(blocks_in_order(cut), in_order((i.benchmark for i in cut), BENCHMARKS)):
        items = series([item for item in cut if (item.block, item.benchmark) == (block, name)])
        before = next((item.by_benchmark[name] for item in items if item.head.method == BASE), None)
        for item in (item for item in items if item.head.method != BASE):
            after, k = item.by_benchmark[name], item.by_benchmark[name].num_samples
            one, many = (
                [share_cell(side.metrics.get(metric) if side else None) for side in (before, after)]
                for metric in ("pass@1", f"pass@{k}")
            )
            of_many = [Cell(f"{k}", float(k)), *one, *many] if k > 1 else [EMPTY, *one, EMPTY, EMPTY]
            seeds, gain = seeds_cell(item, [name]), points_cell(after.metrics.get("gain"))
            rows.append(row_of(item.label, seeds, BENCHMARKS[name], *of_many, gain, section=block))
    return Table(
        name="held_out",
        title="Held-out problems, before and after training",
        columns=(
            *(*left("Method"), SEEDS, *left("Problems"), *right("K")),
            *(column for metric in ("Pass@1", "Pass@K") for column in right("Before", "After", group=metric)),
            *right("Gain"),
        ),
        rows=tuple(rows),
        notes=(
            f"Per cent, the gain in points of Pass@1, paired by problem. In brackets: {INTERVALS}.",
            *data_notes(held_out),
        ),
    )


def sensitivity_table(
    measurements: Sequence[Measurement], *, block: str, method: str, defaults: Defaults | None = None
) -> Table:
    """Pass@1 and Pass@K [%] against each axis that the runs of one method and model vary.

    A block holds the runs that differ from the defaults along one axis alone (or along the same several), in the order
    of their values, and the default run among them.

    Source: the paper's table of hyper-parameter sensitivity.
    """
    items = series_of(measurements, block, method)
    every = [measured for item in items for measured in item.by_benchmark.values()]
    accuracies, rows = Accuracies(items), []
    for keys, variants in variants_of(items, (defaults or {}).get(algo_of(method), {})).items():
        for values, item in variants:
            label = ", ".join(f"{axis_name(key)} = {value}" for key, value in zip(keys, values, strict=True))
            remarks = ", ".join(filter(None, ("" if item.settings else "default", item.head.which)))
            first = f"{label} ({remarks})" if remarks else label
            section = f"Varying {', '.join(map(axis_name, keys))}"
            rows.append(row_of(first, *accuracies.cells(item), section=section))
    return Table(
        name=f"sensitivity_{slug(block)}_{slug(method)}",
        title=f"Sensitivity of {method} on {block}",
        columns=accuracies.columns("Setting"),
        rows=with_best_bold(rows),
        notes=(*HOW_TO_READ, *data_notes(every), *unevaluated_note(measurements, items)),
    )


def swept_methods(measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    """(block, method) of everything measured with more than one setting: what a sensitivity table can be made of."""
    chosen = compared(measurements)
    settings = {(item.block, item.method, tuple(item.settings.items())) for item in chosen}
    counts = Counter((block, method) for block, method, _ in settings)
    methods = in_order((item.method for item in chosen), METHODS.values())
    return [key for key in itertools.product(blocks_in_order(chosen), methods) if counts[key] > 1]


def variants_of(items: Sequence[Series], usual: Mapping[str, str]) -> Variants:
    """The runs along each set of keys in which some run departs from its defaults, and the default run among them.

    Single keys before their combinations, the paper's first. A setting that `usual` lacks is "default" there.
    """
    axes = in_order((key for item in items for key in item.settings), AXES)
    sets = {tuple(item.settings) for item in items if item.settings}
    found = {}
    for keys in sorted(sets, key=lambda keys: (len(keys), [axes.index(key) for key in keys])):
        valued = [
            (tuple(plain(item.settings.get(key, usual.get(key, "default"))) for key in keys), item)
            for item in items
            if not item.settings or tuple(item.settings) == keys
        ]
        found[keys] = sorted(valued, key=lambda pair: [value_place(value) for value in pair[0]])
    return found

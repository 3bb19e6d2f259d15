"""Every two methods of a model compared and corrected for their number, and the seeds that one point takes."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from apo_lab.reporting.averages import score_table
from apo_lab.reporting.names import BASE
from apo_lab.reporting.records import Cell, Measurement, Table, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY, points_cell, seeds_cell
from apo_lab.reporting.tables.series import Series, common_benchmarks, evaluated, series, without_variants
from apo_lab.statistics.multiplicity import holm, seeds_needed
from apo_lab.statistics.seeds import DifferenceTest, seed_difference_test
from apo_lightning.evaluation.records import Estimate
from apo_lightning.evaluation.results import estimate_of

METRICS = ("Pass@1", "Pass@K")
LEVEL = 0.05
FEW_SEEDS = {
    1: "With one training seed a row is about these checkpoints, and says nothing of other seeds of the method.",
    2: "Two seeds say little of how much seeds differ: where these do, the interval is very wide (Student's t with one "
    "degree of freedom). Train three or more.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    """Method B against method A in one metric, averaged over the benchmarks that all methods of the block have."""

    a: Series
    b: Series
    metric: str
    test: DifferenceTest
    seeds_needed: int | None
    """None where one of the two has a single training seed, or is the base model."""


def comparison_table(measurements: Sequence[Measurement]) -> Table:
    """The change of Pass@1 and of Pass@K from each method to each later one, with p-values corrected after Holm.

    Means over the benchmarks that all methods of a block have, each at its sample budget; `seed_difference_test`, and
    `holm` over all comparisons of the table. The last column is `seeds_needed` for one point, from the spread between
    the seeds of these two methods.
    """
    pairs = _pairs(without_variants(series(evaluated(measurements))))
    tested = [pair for pair in pairs if math.isfinite(pair.test.p_value)]
    adjusted = dict(zip(map(id, tested), holm([pair.test.p_value for pair in tested]), strict=True))
    rows = tuple(
        row_of(
            pair.a.head.name,
            pair.b.head.name,
            f"{seeds_cell(pair.a).text}, {seeds_cell(pair.b).text}",
            _metric_name(pair),
            points_cell(_possible(estimate_of(pair.test.difference))),
            _p_cell(pair.test.p_value),
            _p_cell(adjusted.get(id(pair), math.nan), level=LEVEL),
            EMPTY if pair.seeds_needed is None else Cell(f"{pair.seeds_needed:,}", float(pair.seeds_needed)),
            section=pair.a.head.block,
        )
        for pair in pairs
    )
    notes = [
        "Change in points, mean over the benchmarks that all methods of a block have. In brackets: 95 % interval "
        "over problems, paired, and over training seeds of methods that have several. "
        f"Holm: corrected for the {len(tested)} comparisons of this table; bold: at most "
        f"{LEVEL:g}. Last column: training seeds per method that find a change of one point on these problems "
        f"with a power of 80 %, at a level of {LEVEL:g} for this comparison alone."
    ]
    compared = [measured for pair in pairs for item in (pair.a, pair.b) for measured in item.by_benchmark.values()]
    counts = {len(measured.policies) for measured in compared if measured.method != BASE}
    notes += [note for num_seeds, note in FEW_SEEDS.items() if num_seeds in counts]
    return Table(
        name="comparisons",
        title="Every two methods compared",
        columns=(*left("From", "To", "Seeds", "Metric"), *right("Change", "p", "p, Holm", "Seeds for one point")),
        rows=rows,
        notes=tuple(notes),
    )


def _pairs(items: Sequence[Series]) -> list[_Pair]:
    common, pairs = common_benchmarks(items), []
    for a, b in itertools.combinations(items, 2):
        if a.head.block != b.head.block:
            continue
        names = sorted(common[a.head.block])
        for metric in METRICS:
            tables = [_tables(item, names, metric) for item in (a, b)]
            if all(tables):
                test = seed_difference_test(*tables)
                pairs.append(_Pair(a=a, b=b, metric=metric, test=test, seeds_needed=_needed(a, b, tables)))
    return pairs


def _tables(item: Series, names: Sequence[str], metric: str) -> list[torch.Tensor]:
    """The scores of each benchmark, seeds × problems; empty where one of them is not known problem by problem."""
    measured = [item.by_benchmark[name] for name in names]
    found = [
        score_table(each.policies, "pass@1" if metric == METRICS[0] else f"pass@{each.num_samples}")
        for each in measured
    ]
    known = [table for table in found if table is not None]
    same_seeds = len({tuple(policy.seed for policy in each.policies) for each in measured}) == 1
    return known if len(known) == len(names) and same_seeds else []


def _needed(a: Series, b: Series, tables: Sequence[Sequence[torch.Tensor]]) -> int | None:
    by_seed = [torch.stack([table.mean(1) for table in method]).mean(0) for method in tables]
    if BASE in (a.head.method, b.head.method) or min(map(len, by_seed)) < 2:
        return None
    return seeds_needed(math.sqrt(sum(float(each.var()) for each in by_seed) / 2))


def _metric_name(pair: _Pair) -> str:
    """Pass@K by its number, where all benchmarks have one."""
    ks = {measured.num_samples for measured in pair.a.by_benchmark.values()}
    return f"Pass@{max(ks)}" if pair.metric == METRICS[1] and len(ks) == 1 else pair.metric


def _possible(change: Estimate) -> Estimate:
    """The part of the interval that a change of a share can have; none stays none."""
    return replace(change, low=max(change.low, -1.0), high=min(change.high, 1.0))


def _p_cell(p_value: float, level: float = 0.0) -> Cell:
    """A p-value, bold up to the level."""
    if not math.isfinite(p_value):
        return EMPTY
    return Cell("< 0.0001" if p_value < 1e-4 else f"{p_value:.4f}", p_value, bold=p_value <= level)

"""Every two methods of a model compared and corrected for their number, and the seeds that one point takes."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from apo_lightning.evaluation.records import Estimate
from apo_lightning.evaluation.results import estimate_of
from apo_report.identity import score_tables
from apo_report.names import BASE
from apo_report.records import Cell, Measurement, Table, left, right, row_of
from apo_report.statistics.multiplicity import holm, seeds_needed
from apo_report.statistics.seeds import seed_difference_test
from apo_report.tables.cells import EMPTY, p_cell, points_cell, seeds_cell
from apo_report.tables.series import (
    INTERVALS,
    Series,
    base_note,
    common_benchmarks,
    evaluated,
    series,
    without_variants,
)

LEVEL = 0.05
HOLM, POWER = "p, Holm", "Seeds for one point"
FEW_SEEDS = {
    1: "With one training seed a row is about these checkpoints, and says nothing of other seeds of the method.",
    2: "Two seeds say little of how much seeds differ: where these do, the interval is very wide (Student's t with one "
    "degree of freedom). Train three or more.",
}
Scores = Sequence[torch.Tensor]
"""The scores of a method on each benchmark: seeds × problems."""


def comparison_table(measurements: Sequence[Measurement]) -> Table:
    """The change of Pass@1 and of Pass@K from each method to each later one, with p-values corrected after Holm.

    Means over the benchmarks that all methods of a block have, each at its sample budget; `seed_difference_test`, and
    `holm` over all comparisons of the table, if they are several. The last column is `seeds_needed` for one point, from
    the spread between the seeds of these two methods.
    """
    items = without_variants(series(evaluated(measurements)))
    pairs = list(_pairs(items))
    tests = [seed_difference_test(*scores) for *_, scores in pairs]
    tested = [place for place, test in enumerate(tests) if math.isfinite(test.p_value)]
    adjusted = dict(zip(tested, holm([tests[place].p_value for place in tested]), strict=True))
    is_single = len(tested) == 1
    rows = tuple(
        row_of(
            a.label,
            b.label,
            f"{seeds_cell(a).text}, {seeds_cell(b).text}",
            metric,
            points_cell(_possible(estimate_of(test.interval()))),
            p_cell(test.p_value, level=LEVEL if is_single else 0.0),
            EMPTY if is_single else p_cell(adjusted.get(place, math.nan), level=LEVEL),
            EMPTY if BASE in (a.head.method, b.head.method) else _seeds_needed(scores),
            section=a.head.block,
        )
        for place, ((a, b, metric, scores), test) in enumerate(zip(pairs, tests, strict=True))
    )
    compared = [measured for a, b, *_ in pairs for item in (a, b) for measured in item.by_benchmark.values()]
    counts = {len(measured.policies) for measured in compared if measured.method != BASE}
    is_mean = any(len(names) > 1 for names in common_benchmarks(items).values())
    return Table(
        name="comparisons",
        title="Every two methods compared",
        columns=(*left("From", "To", "Seeds", "Metric"), *right("Change", "p", HOLM, POWER)),
        rows=rows,
        notes=(
            f"Change in points{', mean over the benchmarks that all methods of a block have' * is_mean}. In brackets, "
            f"paired by problem: {INTERVALS}.",
            f"{HOLM}: corrected for the {len(tested)} comparisons of this table.",
            f"Bold: at most {LEVEL:g}.",
            f"{POWER}: training seeds per method that find a change of one point on these problems with a power of "
            f"80 %, at a level of {LEVEL:g} for this comparison alone.",
            *(note for num_seeds, note in FEW_SEEDS.items() if num_seeds in counts),
            *base_note(measurements),
        ),
    )


def _pairs(items: Sequence[Series]) -> Iterator[tuple[Series, Series, str, tuple[Scores, Scores]]]:
    """Every two methods of a block, with each metric whose scores are known problem by problem."""
    common = common_benchmarks(items)
    for a, b in itertools.combinations(items, 2):
        if a.head.block == b.head.block:
            names = sorted(common[a.head.block])
            ks = {measured.num_samples for measured in a.by_benchmark.values()}
            for is_many, metric in ((False, "Pass@1"), (True, f"Pass@{max(ks)}" if len(ks) == 1 else "Pass@K")):
                before, after = (
                    score_tables([(own, f"pass@{own.num_samples if is_many else 1}") for own in measured])
                    for measured in ([item.by_benchmark[name] for name in names] for item in (a, b))
                )
                if before and after:
                    yield a, b, metric, (before, after)


def _seeds_needed(scores: tuple[Scores, Scores]) -> Cell:
    by_seed = [torch.stack([table.mean(1) for table in method]).mean(0) for method in scores]
    if min(map(len, by_seed)) < 2:
        return EMPTY
    count = seeds_needed(math.sqrt(sum(float(each.var()) for each in by_seed) / 2))
    return Cell(f"{count:,}", float(count))


def _possible(change: Estimate) -> Estimate:
    """The part of the interval that a change of a share can have; none stays none."""
    return replace(change, low=max(change.low, -1.0), high=min(change.high, 1.0))

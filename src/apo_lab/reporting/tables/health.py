"""Coverage, diversity and uncertainty of each policy."""

from collections.abc import Sequence

from apo_lab.reporting.names import BENCHMARKS, benchmark_name, in_order
from apo_lab.reporting.records import Measurement, Table, left, right, row_of
from apo_lab.reporting.tables.cells import SEEDS, number_cell, seeds_cell, share_cell, with_best_bold
from apo_lab.reporting.tables.series import INTERVALS, data_notes, evaluated, series, without_variants

METRICS = {
    "diversity": "Diversity ↑",
    "semantic_similarity": "Sem. similarity ↓",
    "entropy": "Entropy ↑",
    "max_prob": "MaxProb ↓",
}
LOWER_IS_HEALTHIER = (4, 6)
"""Positions of the columns in which less is better: semantic similarity, MaxProb."""


def health_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@K [%], diversity (1 − Self-BLEU), semantic similarity, token entropy [nats] and mean MaxProb.

    A block for each model, way of measuring and benchmark, of what was evaluated with at least one of the last four.
    Bold marks the healthiest in the paper's sense, which calls more spread healthier.

    Source: the paper's table of distributional health.
    """
    chosen = [item for item in evaluated(measurements) if METRICS.keys() & item.metrics.keys()]
    items = without_variants(series(chosen))
    rows = []
    for block in dict.fromkeys(item.head.block for item in items):
        for name in in_order((n for item in items if item.head.block == block for n in item.by_benchmark), BENCHMARKS):
            for item in items:
                if item.head.block == block and (measured := item.by_benchmark.get(name)):
                    pass_at_k = share_cell(measured.metrics.get(f"pass@{measured.num_samples}"))
                    numbers = [number_cell(measured.metrics.get(metric)) for metric in METRICS]
                    section = f"{block}, {benchmark_name(name)} (K = {measured.num_samples})"
                    rows.append(row_of(item.head.name, seeds_cell(item, [name]), pass_at_k, *numbers, section=section))
    note = f"Pass@K in per cent, entropy in nats. In brackets: {INTERVALS}. Bold: most spread of its block."
    return Table(
        name="health",
        title="Distributional health",
        columns=(*left("Method"), SEEDS, *right("Pass@K ↑", *METRICS.values())),
        rows=with_best_bold(rows, lower_is_better=LOWER_IS_HEALTHIER),
        notes=(note, *data_notes(chosen)),
    )

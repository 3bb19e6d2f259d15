"""How much exploration a policy has left: coverage, diversity and uncertainty beside one another."""

from collections.abc import Sequence

from apo_lightning.reporting.names import benchmark_name, in_benchmark_order
from apo_lightning.reporting.records import Column, Measurement, Row, Table
from apo_lightning.reporting.tables.cells import number_cell, share_cell, with_best_bold
from apo_lightning.reporting.tables.main_results import label, without_variants
from apo_lightning.reporting.tables.series import data_notes, series

METRICS = {
    "diversity": "Diversity ↑",
    "semantic_similarity": "Sem. similarity ↓",
    "entropy": "Entropy ↑",
    "max_prob": "MaxProb ↓",
}
LOWER_IS_HEALTHIER = (3, 5)
"""Columns: semantic similarity, MaxProb."""


def health_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@K [%], diversity (1 − Self-BLEU), semantic similarity, token entropy [nats] and mean MaxProb.

    A block for each model and benchmark, of what was evaluated with at least one of the last four. Bold marks the
    healthiest in the paper's sense, which calls more spread healthier.

    Source: the paper's table of distributional health.
    """
    chosen = [item for item in measurements if not item.held_out and METRICS.keys() & item.metrics.keys()]
    items = without_variants(series(chosen))
    rows = []
    for model in dict.fromkeys(item.model for item in items):
        for name in in_benchmark_order(name for item in items if item.model == model for name in item.by_benchmark):
            for item in items:
                if item.model == model and (measured := item.by_benchmark.get(name)):
                    pass_at_k = share_cell(measured.metrics.get(f"pass@{measured.num_samples}"))
                    numbers = [number_cell(measured.metrics.get(metric)) for metric in METRICS]
                    section = f"{model}, {benchmark_name(name)} (K = {measured.num_samples})"
                    rows.append(Row(cells=(label(item), pass_at_k, *numbers), section=section))
    note = "Pass@K in per cent, entropy in nats. In brackets: 95 % confidence interval. Bold: most spread of its block."
    return Table(
        name="health",
        title="Distributional health",
        columns=(Column(name="Method", align="left"), *(Column(name=name) for name in ("Pass@K ↑", *METRICS.values()))),
        rows=with_best_bold(rows, lower_is_better=LOWER_IS_HEALTHIER),
        notes=(note, *data_notes(chosen)) if rows else (),
    )

"""Coverage, diversity and uncertainty of each policy."""

from collections.abc import Collection, Sequence

from apo_lab.reporting.names import BENCHMARKS, benchmark_name, in_order, method_name, model_name
from apo_lab.reporting.published import FAULTS, PublishedCell, published
from apo_lab.reporting.records import Cell, Measurement, Table, TableRow, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY, SEEDS, number_cell, seeds_cell, share_cell, with_best_bold
from apo_lab.reporting.tables.series import INTERVALS, data_notes, evaluated, series, without_variants

METRICS = {
    "diversity": "Diversity ↑",
    "semantic_similarity": "Sem. similarity ↓",
    "entropy": "Entropy ↑",
    "max_prob": "MaxProb ↓",
    "support_coverage": "Support mass ↑",
}
LOWER_IS_HEALTHIER = (4, 6)
"""Positions of the columns in which less is better: semantic similarity, MaxProb."""


def health_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@K [%], diversity (1 − Self-BLEU), semantic similarity, entropy [nats], mean MaxProb and support mass.

    A block for each model, way of measuring and benchmark, of what was evaluated with at least one of the last five;
    the published rows last, which have no support mass, if their model was evaluated. Bold marks the healthiest in the
    paper's sense, which calls more spread healthier.

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
    theirs = _published({item.head.model for item in items})
    note = (
        f"Pass@K in per cent, entropy in nats. Support mass: the policy's probability of the top K tokens of the model "
        f"before training. In brackets: {INTERVALS}. Bold: most spread of its block."
    )
    faults = dict.fromkeys(FAULTS[fault] for cell in published("distribution") for fault in cell.mark.split())
    marked = [f"Marked: the published number {', or '.join(faults)}."] if theirs else []
    return Table(
        name="health",
        title="Distributional health",
        columns=(*left("Method"), SEEDS, *right("Pass@K ↑", *METRICS.values())),
        rows=with_best_bold(rows + theirs, lower_is_better=LOWER_IS_HEALTHIER),
        notes=(note, *marked, *data_notes(chosen)),
    )


def _published(models: Collection[str]) -> list[TableRow]:
    """A row for each method of the paper's table, if its model is among those with these printed names."""
    found: dict[str, dict[str, PublishedCell]] = {}
    for cell in published("distribution"):
        found.setdefault(cell.method, {})[cell.metric] = cell
    first = published("distribution")[0]
    if model_name(first.model) not in models:
        return []
    section = f"Published ({model_name(first.model)}, {benchmark_name(first.benchmark)}, K = 32)"
    return [
        row_of(
            method_name(method),
            "–",
            *(
                Cell(cell.text, cell.value, marked=bool(cell.mark)) if (cell := cells.get(metric)) else EMPTY
                for metric in ("pass@32", *METRICS)
            ),
            section=section,
        )
        for method, cells in found.items()
    ]

"""What was measured here with what was published: accuracies, distributional health, oracle coverage, settings."""

import itertools
from collections.abc import Collection, Iterator, Sequence

from apo_lightning.evaluation.records import Estimate
from apo_report.names import BENCHMARKS, HYPERPARAMETERS, METHODS, MODELS, in_order
from apo_report.published import AVERAGE, FAULTS, NUM_SAMPLES, PublishedCell, published, published_cell
from apo_report.records import Cell, Covered, Measurement, RunCard, Table, TableRow, left, right, row_of
from apo_report.runs import plain, value_place
from apo_report.tables.cells import EMPTY, PER_CENT, SEEDS, number_cell, seeds_cell, share_cell, with_best_bold
from apo_report.tables.series import INTERVALS, Series, average, data_notes, evaluated, series, without_variants

METRICS = {
    "diversity": "Diversity ↑",
    "semantic_similarity": "Sem. similarity ↓",
    "entropy": "Entropy ↑",
    "max_prob": "MaxProb ↓",
    "support_coverage": "Support mass ↑",
}
LOWER_IS_HEALTHIER = (4, 6)
"""Positions of the columns in which less is better: semantic similarity, MaxProb."""


def beside_published(measurements: Sequence[Measurement]) -> Table:
    """Every number of ours that the paper has too (same model, method, setting, benchmark and K), and the difference.

    Marked: a published number that does not add up. Averages only where all five benchmarks were evaluated with the
    paper's K.
    """
    found = [
        (item, name, metric, ours, theirs)
        for item in series(evaluated(measurements))
        for name, metric, ours in _numbers(item)
        if (theirs := _published_cell(item, name, metric)) is not None
    ]
    faults = _faults(theirs for *_, theirs in found)
    return Table(
        name="beside_published",
        title="Measured here and published",
        columns=(*left("Method"), SEEDS, *left("Benchmark", "Metric"), *right("Here", "Published", "Difference")),
        rows=tuple(_comparison(*each) for each in found),
        notes=(
            f"Per cent. In brackets: {INTERVALS}, of our number.",
            f"†: the published number does not add up: it {faults}.",
        ),
    )


def health_table(measurements: Sequence[Measurement]) -> Table:
    """Pass@K [%], diversity (1 − Self-BLEU), semantic similarity, entropy [nats], mean MaxProb and support mass.

    A block for each model, way of measuring and benchmark, of what was evaluated with at least one of the last five;
    the published rows last, which have no support mass, if their model was evaluated. Bold marks the healthiest in the
    paper's sense, which calls more spread healthier.

    Source: the paper's table of distributional health.
    """
    chosen = [item for item in evaluated(measurements) if METRICS.keys() & item.metrics.keys()]
    items = without_variants(series(chosen))
    blocks = [*dict.fromkeys(item.head.block for item in items)]
    benchmarks = in_order((name for item in items for name in item.by_benchmark), BENCHMARKS)
    rows = []
    for block, name, item in itertools.product(blocks, benchmarks, items):
        if item.head.block == block and (measured := item.by_benchmark.get(name)):
            pass_at_k = share_cell(measured.metrics.get(f"pass@{measured.num_samples}"))
            numbers = [number_cell(measured.metrics.get(metric)) for metric in METRICS]
            section = f"{block}, {BENCHMARKS[name]} (K = {measured.num_samples})"
            rows.append(row_of(item.label, seeds_cell(item, [name]), pass_at_k, *numbers, section=section))
    theirs = _published_health({item.head.model for item in items})
    return Table(
        name="health",
        title="Distributional health",
        columns=(*left("Method"), SEEDS, *right("Pass@K ↑", *METRICS.values())),
        rows=with_best_bold(rows + theirs, lower_is_better=LOWER_IS_HEALTHIER),
        notes=(
            f"Pass@K in per cent. In brackets: {INTERVALS}.",
            f"{METRICS['entropy']}: in nats.",
            f"{METRICS['support_coverage']}: the policy's probability of the base model's top K tokens.",
            "Bold: most spread of its block.",
            f"†: the published number {_faults(published('distribution'))}.",
            *data_notes(chosen),
        ),
    )


def coverage_table(covered: Sequence[Covered]) -> Table:
    """Oracle recall at K [%] of every model that was measured, the published row last; a block for each preset.

    Source: the paper's table of oracle coverage.
    """
    sizes = sorted({k for item in covered for k in item.result.recall})
    models = in_order((item.model for item in covered), MODELS.values())
    rows = [
        row_of(
            item.model,
            item.method,
            Cell(f"{item.result.num_tokens:,}", float(item.result.num_tokens)),
            *(share_cell(item.result.recall.get(k)) for k in sizes),
            section=f"{item.result.preset} solutions",
        )
        for item in sorted(covered, key=lambda item: (item.result.preset, models.index(item.model)))
    ]
    if rows:
        recall = {cell.metric: cell for cell in published("coverage")}
        first, numbers = recall["recall@1"], [_cell_of(recall.get(f"recall@{k}")) for k in sizes]
        section = f"Published ({first.benchmark}, 1,000 problems)"
        rows.append(row_of(MODELS[first.model], METHODS[first.method], EMPTY, *numbers, section=section))
    return Table(
        name="coverage",
        title="Oracle coverage",
        columns=(*left("Model", "Method"), *right("Tokens", *(f"Top-{k}" for k in sizes))),
        rows=tuple(rows),
        notes=("Recall in per cent of solution tokens. In brackets: 95 % interval over problems.",),
    )


def hyperparameter_table(runs: Sequence[RunCard]) -> Table:
    """Every setting that the paper gives, and what the runs used. Then those of own losses.

    Beside runs of the paper's models stand the paper's values, and a mark where a run differs.

    Source: the paper's table of hyper-parameters. It gives no units; the batch sizes are read as prompts.
    """
    algos = {run.algo for run in runs}
    cells = [cell for cell in published("hyperparameters") if runs and cell.method in ("", *algos)]
    has_paper = not {run.model for run in runs}.isdisjoint(cell.model for cell in published("main_results"))
    return Table(
        name="hyperparameters",
        title="Hyper-parameters",
        columns=(*left("Setting", "Methods"), *right("Paper", "These runs")),
        rows=(
            *(_setting(cell, [run for run in runs if cell.method in ("", run.algo)], has_paper) for cell in cells),
            *_own_coefficients([run for run in runs if run.algo not in METHODS]),
        ),
        notes=("†: not the paper's value in every run.",),
    )


def _numbers(item: Series) -> Iterator[tuple[str, str, Estimate]]:
    for name in in_order(item.by_benchmark, BENCHMARKS):
        measured = item.by_benchmark[name]
        for metric in dict.fromkeys(("pass@1", f"pass@{measured.num_samples}")):
            if metric in measured.metrics:
                yield name, metric, measured.metrics[metric]
    if all(name in item.by_benchmark for name in NUM_SAMPLES):
        for metric in ("pass@1", "pass@K"):
            if (mean := average(item, NUM_SAMPLES, metric, NUM_SAMPLES)) is not None:
                yield AVERAGE, metric, mean


def _published_cell(item: Series, benchmark: str, metric: str) -> PublishedCell | None:
    setting = ",".join(f"{key}={value}" for key, value in item.head.settings.items())
    names = {"model": item.head.model, "method": item.head.method, "benchmark": benchmark, "metric": metric}
    return published_cell("sensitivity" if setting else "main_results", **names, setting=setting)


def _comparison(item: Series, benchmark: str, metric: str, ours: Estimate, theirs: PublishedCell) -> TableRow:
    difference = ours.value * PER_CENT - theirs.value
    return row_of(
        item.head.name,
        seeds_cell(item, None if benchmark == AVERAGE else [benchmark]),
        "Average" if benchmark == AVERAGE else BENCHMARKS[benchmark],
        metric.replace("p", "P", 1),
        share_cell(ours),
        _cell_of(theirs),
        Cell(f"{difference:+z.2f}", difference),
        section=item.head.block,
    )


def _published_health(models: Collection[str]) -> list[TableRow]:
    """A row for each method of the paper's table, if its model is among those with these printed names."""
    cells = {(cell.method, cell.metric): cell for cell in published("distribution")}
    first = published("distribution")[0]
    if MODELS[first.model] not in models:
        return []
    section = f"Published ({MODELS[first.model]}, {BENCHMARKS[first.benchmark]}, K = 32)"
    return [
        row_of(
            METHODS[method],
            "–",
            *(_cell_of(cells.get((method, metric))) for metric in ("pass@32", *METRICS)),
            section=section,
        )
        for method in dict.fromkeys(method for method, _ in cells)
    ]


def _cell_of(cell: PublishedCell | None) -> Cell:
    return Cell(cell.text, cell.value, marked=bool(cell.mark)) if cell else EMPTY


def _faults(cells: Iterator[PublishedCell] | Collection[PublishedCell]) -> str:
    """What is wrong with some published cells; empty: nothing."""
    return ", or ".join(dict.fromkeys(FAULTS[fault] for cell in cells for fault in cell.mark.split()))


def _setting(cell: PublishedCell, runs: Sequence[RunCard], has_paper: bool) -> TableRow:
    values = {value for run in runs if (value := _value(run, cell.metric)) is not None}
    differs = has_paper and cell.metric != "platform" and bool(values - {plain(cell.text)})
    found = ", ".join(sorted(values, key=value_place)) or "–"
    methods = METHODS[cell.method] if cell.method else "all"
    theirs = cell.text if has_paper else EMPTY
    return row_of(HYPERPARAMETERS[cell.metric], methods, theirs, Cell(found, marked=differs))


def _own_coefficients(runs: Sequence[RunCard]) -> Iterator[TableRow]:
    """The coefficients of losses that have no printed name here, by algorithm."""
    for algo in dict.fromkeys(run.algo for run in runs):
        of_algo = [run.config for run in runs if run.algo == algo]
        for key in sorted({key for config in of_algo for key in config if key.startswith("algo.loss.")}):
            if not key.endswith("_target_"):
                values = {plain(config[key]) for config in of_algo if key in config}
                yield row_of(key.removeprefix("algo.loss."), algo, "–", ", ".join(sorted(values, key=value_place)))


def _value(run: RunCard, key: str) -> str | None:
    if key == "platform":
        parts = [run.config.get(f"trainer.{name}", "?") for name in ("num_nodes", "devices", "accelerator")]
        return "{} × {} {}".format(*parts) if run.config else None
    if key == "context_tokens":
        parts = [run.config.get(f"data.max_{name}_tokens", "") for name in ("prompt", "completion")]
        return str(sum(map(int, parts))) if all(map(str.isdecimal, parts)) else None
    value = run.config.get(key)
    return None if value is None else plain(value)

"""What was measured here next to what was published: accuracies, oracle coverage, hyper-parameters."""

from collections.abc import Iterator, Sequence

from apo_lab.reporting.axes import plain, value_place
from apo_lab.reporting.names import (
    BENCHMARKS,
    HYPERPARAMETERS,
    METHODS,
    MODELS,
    axis_name,
    benchmark_name,
    in_order,
    method_name,
    model_name,
)
from apo_lab.reporting.published import AVERAGE, FAULTS, NUM_SAMPLES, Name, PublishedCell, published, published_cell
from apo_lab.reporting.records import (
    Cell,
    Covered,
    Measurement,
    RunCard,
    Table,
    TableRow,
    left,
    right,
    row_of,
)
from apo_lab.reporting.tables.cells import EMPTY, PER_CENT, SEEDS, seeds_cell, share_cell
from apo_lab.reporting.tables.series import INTERVALS, Series, average, evaluated, series
from apo_lightning.evaluation.records import Estimate


def beside_published(measurements: Sequence[Measurement]) -> Table:
    """Every number of ours that the paper has too (same model, method, setting, benchmark and K), and the difference.

    Marked: a published number that does not add up. Averages only where all five benchmarks were evaluated with the
    paper's K.
    """
    items = series(evaluated(measurements))
    found = [
        (item, name, metric, ours, theirs)
        for item in items
        for name, metric, ours in _numbers(item)
        if (theirs := _published_cell(item, name, metric)) is not None
    ]
    notes = [f"Per cent. In brackets: {INTERVALS}, of our number."]
    if faults := dict.fromkeys(FAULTS[fault] for *_, theirs in found for fault in theirs.mark.split()):
        notes.append(f"Marked: the published number does not add up: it {', or '.join(faults)}.")
    return Table(
        name="beside_published",
        title="Measured here and published",
        columns=(*left("Method"), SEEDS, *left("Benchmark", "Metric"), *right("Here", "Published", "Difference")),
        rows=tuple(_comparison(*each) for each in found),
        notes=tuple(notes),
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
    table: Name = "sensitivity" if setting else "main_results"
    names = {"model": item.head.model, "method": item.head.method, "benchmark": benchmark, "metric": metric}
    return published_cell(table, **names, setting=setting)


def _comparison(item: Series, benchmark: str, metric: str, ours: Estimate, theirs: PublishedCell) -> TableRow:
    difference = ours.value * PER_CENT - theirs.value
    return row_of(
        item.head.name,
        seeds_cell(item, None if benchmark == AVERAGE else [benchmark]),
        "Average" if benchmark == AVERAGE else benchmark_name(benchmark),
        metric.replace("p", "P", 1),
        share_cell(ours),
        Cell(theirs.text, theirs.value, marked=bool(theirs.mark)),
        Cell(f"{difference:+z.2f}", difference),
        section=item.head.block,
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
        first, cells = recall["recall@1"], [recall.get(f"recall@{k}") for k in sizes]
        numbers = (Cell(cell.text, cell.value) if cell else EMPTY for cell in cells)
        section = f"Published ({first.benchmark}, 1,000 problems)"
        rows.append(row_of(model_name(first.model), method_name(first.method), EMPTY, *numbers, section=section))
    return Table(
        name="coverage",
        title="Oracle coverage",
        columns=(*left("Model", "Method"), *right("Tokens", *(f"Top-{k}" for k in sizes))),
        rows=tuple(rows),
        notes=("Recall in per cent of solution tokens. In brackets: 95 % interval over problems.",),
    )


def hyperparameter_table(runs: Sequence[RunCard]) -> Table:
    """Every setting that the paper gives, and what the runs used; marked where a run differs. Then their losses' own.

    Source: the paper's table of hyper-parameters. It gives no units; the batch sizes are read as prompts.
    """
    algos = {run.algo for run in runs}
    cells = [cell for cell in published("hyperparameters") if runs and cell.method in ("", *algos)]
    own = {key for run in runs for key in run.config if key.startswith("algo.loss.") and not key.endswith("_target_")}
    return Table(
        name="hyperparameters",
        title="Hyper-parameters",
        columns=(*left("Setting", "Methods"), *right("Paper", "These runs")),
        rows=(
            *(_setting(cell, [run for run in runs if cell.method in ("", run.algo)]) for cell in cells),
            *(_own_setting(key, runs) for key in sorted(own - {cell.metric for cell in cells})),
        ),
        notes=("Marked: not the paper's value in every run.",),
    )


def _setting(cell: PublishedCell, runs: Sequence[RunCard]) -> TableRow:
    values = {value for run in runs if (value := _value(run, cell.metric)) is not None}
    differs = cell.metric != "platform" and bool(values - {plain(cell.text)})
    found = ", ".join(sorted(values, key=value_place)) or "–"
    methods = method_name(cell.method) if cell.method else "all"
    return row_of(HYPERPARAMETERS[cell.metric], methods, cell.text, Cell(found, marked=differs))


def _own_setting(key: str, runs: Sequence[RunCard]) -> TableRow:
    having = [run for run in runs if key in run.config]
    names = in_order({run.label for run in having}, METHODS.values())
    methods = "all" if len(having) == len(runs) else ", ".join(names)
    values = sorted({plain(run.config[key]) for run in having}, key=value_place)
    return row_of(axis_name(key), methods, "–", ", ".join(values))


def _value(run: RunCard, key: str) -> str | None:
    if key == "platform":
        parts = [run.config.get(f"trainer.{name}", "?") for name in ("num_nodes", "devices", "accelerator")]
        return "{} × {} {}".format(*parts) if run.config else None
    if key == "context_tokens":
        parts = [run.config.get(f"data.max_{name}_tokens", "") for name in ("prompt", "completion")]
        return str(sum(map(int, parts))) if all(map(str.isdecimal, parts)) else None
    value = run.config.get(key)
    return None if value is None else plain(value)

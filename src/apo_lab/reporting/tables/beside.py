"""What was measured here beside what was published, cell by cell."""

from collections.abc import Iterator, Sequence

from apo_lab.reporting.names import benchmark_name, in_benchmark_order
from apo_lab.reporting.published import AVERAGE, FAULTS, NUM_SAMPLES, Name, PublishedCell, published_cell
from apo_lab.reporting.records import Cell, Measurement, Table, TableRow, left, right, row_of
from apo_lab.reporting.tables.cells import PER_CENT, share_cell
from apo_lab.reporting.tables.columns import SEEDS, seeds_cell
from apo_lab.reporting.tables.series import Series, average, evaluated_or_held_out, interval_note, series
from apo_lightning.evaluation.records import Estimate


def beside_published(measurements: Sequence[Measurement]) -> Table:
    """Every number of ours that the paper has too (same model, method, setting, benchmark and K), and the difference.

    Marked: a published number that does not add up. Averages only where all five benchmarks were evaluated with the
    paper's K.
    """
    items = series([item for item in evaluated_or_held_out(measurements) if not item.held_out])
    found = [
        (item, name, metric, ours, theirs)
        for item in items
        for name, metric, ours in _numbers(item)
        if (theirs := _published(item, name, metric)) is not None
    ]
    notes = [f"Per cent. In brackets: {interval_note(items)}, of our number."] if found else []
    if faults := dict.fromkeys(FAULTS[fault] for *_, theirs in found for fault in theirs.mark.split()):
        notes.append(f"Marked: the published number does not add up: it {', or '.join(faults)}.")
    return Table(
        name="beside_published",
        title="Measured here and published",
        columns=(
            *left("Method"),
            SEEDS,
            *left("Benchmark", "Metric"),
            *right("Here", "Published", "Difference"),
        ),
        rows=tuple(_row(*each) for each in found),
        notes=tuple(notes),
    )


def _numbers(item: Series) -> Iterator[tuple[str, str, Estimate]]:
    for name in in_benchmark_order(item.by_benchmark):
        measured = item.by_benchmark[name]
        for metric in dict.fromkeys(("pass@1", f"pass@{measured.num_samples}")):
            if metric in measured.metrics:
                yield name, metric, measured.metrics[metric]
    if all(name in item.by_benchmark for name in NUM_SAMPLES):
        wanted = {"pass@1": dict.fromkeys(NUM_SAMPLES, "pass@1")}
        wanted["pass@K"] = {name: f"pass@{k}" for name, k in NUM_SAMPLES.items()}
        for metric, metric_of in wanted.items():
            if (mean := average(item, NUM_SAMPLES, metric_of)) is not None:
                yield AVERAGE, metric, mean


def _published(item: Series, benchmark: str, metric: str) -> PublishedCell | None:
    setting = ",".join(f"{key}={value}" for key, value in item.settings.items())
    table: Name = "sensitivity" if setting else "main_results"
    names = {"model": item.model, "method": item.method, "benchmark": benchmark, "metric": metric}
    return published_cell(table, **names, setting=setting)


def _row(item: Series, benchmark: str, metric: str, ours: Estimate, theirs: PublishedCell) -> TableRow:
    difference = ours.value * PER_CENT - theirs.value
    return row_of(
        item.name,
        seeds_cell(item, None if benchmark == AVERAGE else [benchmark]),
        "Average" if benchmark == AVERAGE else benchmark_name(benchmark),
        metric.replace("p", "P", 1),
        share_cell(ours),
        Cell(theirs.text, theirs.value, marked=bool(theirs.mark)),
        Cell(f"{difference:+.2f}", difference),
        section=item.block,
    )

"""How everything in a report was measured."""

from collections.abc import Sequence

from apo_lab.reporting.identity import HASH_LETTERS, weights_name
from apo_lab.reporting.names import benchmark_name
from apo_lab.reporting.records import Measurement, Table, left, right, row_of


def settings_table(measurements: Sequence[Measurement]) -> Table:
    """Every setting that may decide a number: one row an evaluation or a held-out set of a training run."""
    names = list(dict.fromkeys(name for item in measurements for name in item.sampling))
    rows = [
        row_of(
            item.model,
            item.name,
            benchmark_name(item.benchmark),
            f"{item.num_samples}",
            item.seed or "–",
            ", ".join(item.sampling_seeds),
            weights_name(item.weights),
            *(item.sampling.get(name, "–") for name in names),
            section="Held-out problems of training runs" if item.held_out else "Evaluations",
        )
        for item in measurements
    ]
    return Table(
        name="settings",
        title="How it was measured",
        columns=(
            *left("Model", "Method", "Benchmark"),
            *right("Samples"),
            *right("Training", "Sampling", group="Seed"),
            *right("Weights", *(name.capitalize() for name in names)),
        ),
        rows=tuple(rows),
        notes=(f"Samples: completions a problem. Hashes: the first {HASH_LETTERS} digits of a SHA-256.",),
    )

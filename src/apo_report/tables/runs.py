"""The training runs of a report: how each is named in it, and where it lies."""

import os
from collections.abc import Sequence
from datetime import datetime

from apo_report.identity import short
from apo_report.names import MODELS, variant_name
from apo_report.records import RunCard, Table, left, right, row_of
from apo_report.runs import Defaults, axes, settings
from apo_report.tables.cells import EMPTY


def runs_table(runs: Sequence[RunCard], defaults: Defaults | None = None) -> Table:
    """Each run's label, seed, last step, weights, when it last wrote metrics, and folder from here, by model."""
    keys, rows = axes(runs), []
    for run in runs:
        written = run.folder / "metrics.csv"
        rows.append(
            row_of(
                variant_name(run.label, settings(run, keys, defaults)),
                run.seed or EMPTY,
                f"{run.metrics.index.max():g}" if len(run.metrics) else EMPTY,
                short(run.summary.get("weights_sha256", "–")),
                f"{datetime.fromtimestamp(written.stat().st_mtime):%Y-%m-%d %H:%M}" if written.is_file() else EMPTY,
                os.path.relpath(run.folder),
                section=MODELS[run.model],
            )
        )
    return Table(
        name="runs",
        title="Runs",
        columns=(*left("Method"), *right("Seed", "Steps"), *left("Weights", "Last written", "Folder")),
        rows=tuple(sorted(rows, key=lambda row: row.section)),
        notes=(
            "Weights: the first digits of their SHA-256; none where a run has not ended. Other tables leave out of a "
            "label what all their rows share. Folders from where the report was made.",
        ),
    )

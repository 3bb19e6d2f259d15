"""The training runs of a report: how each is named in it, and where it lies."""

import os
from collections.abc import Sequence
from datetime import datetime

from apo_lab.reporting.names import MODELS, variant_name
from apo_lab.reporting.records import Cell, Column, RunCard, Table, left, row_of
from apo_lab.reporting.runs import Defaults, axes, settings
from apo_lab.reporting.tables.cells import EMPTY


def runs_table(runs: Sequence[RunCard], defaults: Defaults | None = None) -> Table:
    """Each run's number, label, seed, last step, folder from here, and when it last wrote metrics, by model."""
    keys, rows = axes(runs), []
    for number, run in enumerate(runs, start=1):
        written = run.folder / "metrics.csv"
        rows.append(
            row_of(
                Cell(f"{number}", float(number)),
                variant_name(run.label, settings(run, keys, defaults)),
                run.seed or EMPTY,
                f"{run.metrics.index.max():g}" if len(run.metrics) else EMPTY,
                f"{datetime.fromtimestamp(written.stat().st_mtime):%Y-%m-%d %H:%M}" if written.is_file() else EMPTY,
                os.path.relpath(run.folder),
                section=MODELS[run.model],
            )
        )
    return Table(
        name="runs",
        title="Runs",
        columns=(Column("Run"), *left("Method"), Column("Seed"), Column("Steps"), *left("Last written", "Folder")),
        rows=tuple(sorted(rows, key=lambda row: row.section)),
        notes=("Other tables leave out of a label what all their rows share. Folders from where the report was made.",),
    )

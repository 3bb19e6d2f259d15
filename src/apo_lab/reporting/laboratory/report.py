"""The laboratory's runs → tables, figures, `results.json` and one page."""

from collections.abc import Sequence
from pathlib import Path

import torch

from apo_lab.reporting.laboratory.baselines import baselines_table
from apo_lab.reporting.laboratory.figures import laboratory_figures
from apo_lab.reporting.laboratory.reading import LabRun, read_laboratory
from apo_lab.reporting.laboratory.statistics import frontier
from apo_lab.reporting.laboratory.sweeps import sweep_table
from apo_lab.reporting.laboratory.tables import (
    cost_table,
    entropy_table,
    main_table,
    matched_table,
    prediction_table,
    revival_table,
)
from apo_lab.reporting.page import Report, write_report
from apo_lab.reporting.records import Table
from apo_lightning.common.files import to_json, write_atomically

FRONTIER_K = 64


def laboratory_report(folder: Path, *, date: str) -> Path:
    """Write everything below `folder`/report, from the runs that are finished; returns `report.html`.

    Raises:
        ConfigError: no run is finished.
    """
    runs, output = read_laboratory(folder), folder / "report"
    frontiers = _frontiers(runs)
    made = (
        main_table(runs),
        matched_table(runs, frontiers),
        prediction_table(runs),
        baselines_table(runs),
        revival_table(runs),
        entropy_table(runs),
        sweep_table(runs),
        cost_table(runs),
    )
    tables = [table for table in made if table.rows]
    write_atomically(output / "results.json", to_json({table.name: _plain(table) for table in tables}, indent=1))
    title = "The laboratory: collapse of pass@k, and methods against it"
    figures = laboratory_figures(runs, frontiers)
    return write_report(Report(title=title, date=date, num_runs=len(runs), tables=tables, figures=figures), output)


def _frontiers(runs: Sequence[LabRun]) -> dict[str, list[tuple[float, float]]]:
    """The frontier of locks, where a policy sees only the class of a problem; Countdown hides nothing and has none."""
    locks = next((run for run in runs if run.puzzle == "locks"), None)
    if locks is None:
        return {}
    classes = sorted({problem[0] for problem in locks.problems})
    group = torch.tensor([classes.index(problem[0]) for problem in locks.problems])
    return {"locks": frontier(locks.answers.has_valid, group, FRONTIER_K)}


def _plain(table: Table) -> list[dict[str, object]]:
    """A table as rows of plain values: number and interval where there is one, else the text."""
    rows = []
    for row in table.rows:
        cells: dict[str, object] = {"section": row.section} if row.section else {}
        for column, cell in zip(table.columns, row.cells, strict=True):
            cells[column.title] = cell.text if cell.value is None else cell.value
            if cell.interval is not None:
                cells[f"{column.title} interval"] = list(cell.interval)
        rows.append(cells)
    return rows

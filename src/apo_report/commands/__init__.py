"""The commands that this package adds to `apo`, each registered by an entry point in `pyproject.toml`."""

from apo_lightning.run.commands import Command

REPORT = Command(
    name="report",
    summary="Tables and figures of runs and evaluations, on one page.",
    work="apo_report.commands.report:report",
    config="report",
)
PAPER = Command(
    name="paper",
    summary="Run all cells of the paper's tables and figures.",
    work="apo_report.commands.paper:paper",
    config="paper",
    actions=("status", "run", "report"),
)

"""`apo paper status | run | report`: everything that the paper's tables and figures are made of."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.table import Table

from apo_lightning.common.console import say, show
from apo_lightning.errors import ConfigError
from apo_report.paper.cells import PaperCell, list_cells
from apo_report.paper.work import owner_of, state_of, work_off


def paper(cfg: DictConfig) -> None:
    """Do `action` with the cells of the configuration.

    Raises:
        ConfigError: there is no such action, a cell cannot be composed, or cells failed.
    """
    cells = list_cells(cfg)
    match cfg.action:
        case "status":
            _status(cells)
        case "run":
            work_off(cells, cfg.limit)
        case "report":
            _report(cfg, cells)
        case _:
            raise ConfigError(f"action is {cfg.action}: choose one of status, run, report")


def _status(cells: Sequence[PaperCell]) -> None:
    """Print the state of every cell, and how many there are of each."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("cell", "state", ""):
        table.add_column(name, no_wrap=True)
    counts = Counter[str]()
    for cell in cells:
        state = state_of(cell)
        counts[state] += 1
        table.add_row(cell.name, state, owner_of(cell) if state == "running" else "")
    show(table)
    say(_counted(counts))


def _report(cfg: DictConfig, cells: Sequence[PaperCell]) -> None:
    """Build the report from all cells that have begun; its title counts those that are not done."""
    from apo_lightning.run.choices import composed
    from apo_report.commands.report import report

    root = Path(cfg.output_dir)
    folders = sorted({root / cell.name.partition("/")[0] for cell in cells if cell.folder.is_dir()})
    if not folders:
        raise ConfigError(f"{root} has none of the {len(cells)} cells: apo paper run makes them")
    counts = Counter(map(state_of, cells))
    if counts["stale"]:
        say(f"warning: {counts['stale']} stale cells are in the report: apo paper status lists them")
    of_report = composed("report")
    of_report.runs = [str(folder) for folder in folders]
    of_report.output_dir, of_report.date = str(root / "report"), cfg.date
    of_report.title = f"The paper's tables and figures: {_counted(counts)}"
    report(of_report)


def _counted(counts: Counter[str]) -> str:
    """`3 done, 1 stale, 2 missing of 6 cells`."""
    states = ("done", "stale", "running", "begun", "missing")
    return f"{', '.join(f'{counts[state]} {state}' for state in states if counts[state])} of {counts.total()} cells"

"""`apo paper status | run | report`: everything that the paper's tables and figures are made of."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig
from rich.table import Table

from apo_lab.paper.cells import Cell, list_cells
from apo_lightning.common.console import say, show
from apo_lightning.errors import ConfigError


def paper(cfg: DictConfig) -> None:
    """Do `action` with the cells of the configuration.

    Raises:
        ConfigError: there is no such action, a cell cannot be composed, or cells failed.
    """
    actions = {"status": _status, "run": _run, "report": _report}
    if cfg.action not in actions:
        raise ConfigError(f"action is {cfg.action}: choose one of {', '.join(actions)}")
    actions[cfg.action](cfg, list_cells(cfg))


def _status(cfg: DictConfig, cells: Sequence[Cell]) -> None:
    """Print the state of every cell, and how many there are of each."""
    table = _table("state", "")
    counts = Counter[str]()
    for cell in cells:
        state, owner = _state(cell)
        counts[state] += 1
        table.add_row(cell.name, state, owner)
    show(table)
    say(_counted(counts))


def _run(cfg: DictConfig, cells: Sequence[Cell]) -> None:
    from apo_lab.paper.work import work_off

    work_off(cells, Path(cfg.output_dir), cfg.limit)


def _report(cfg: DictConfig, cells: Sequence[Cell]) -> None:
    """Build the report from all cells that have begun; its title counts those that are not done."""
    from apo_lab.commands.report import report
    from apo_lightning.run.choices import composed

    root = Path(cfg.output_dir)
    folders = sorted({root / cell.name.partition("/")[0] for cell in cells if cell.folder.is_dir()})
    if not folders:
        raise ConfigError(f"{root} has none of the {len(cells)} cells: apo paper run makes them")
    counts = Counter(_state(cell)[0] for cell in cells)
    if counts["stale"]:
        say(f"warning: {counts['stale']} stale cells are in the report: apo paper status lists them")
    of_report = composed("report")
    of_report.runs = [str(folder) for folder in folders]
    of_report.output_dir, of_report.date = str(root / "report"), cfg.date
    of_report.title = f"The paper's tables and figures: {_counted(counts)}"
    report(of_report)


def _state(cell: Cell) -> tuple[str, str]:
    """The state of a cell, or that somebody works on it, and who."""
    from apo_lab.paper.claims import living_owner
    from apo_lab.paper.states import state_of

    owner = living_owner(cell.folder) if cell.folder.is_dir() else None
    return ("running", str(owner)) if owner else (state_of(cell), "")


def _counted(counts: Counter[str]) -> str:
    """`3 done, 1 stale, 2 missing` of 6."""
    states = ("done", "stale", "running", "begun", "missing")
    return f"{', '.join(f'{counts[state]} {state}' for state in states if counts[state])} of {counts.total()} cells"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("cell", no_wrap=True)
    for name in columns:
        table.add_column(name, no_wrap=True)
    return table

"""Configuration → a folder of tables and figures, and one page that shows them all."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

from apo_lightning.common.console import say
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed, options_of
from apo_report.evaluations import measurements, read_evaluations, with_snapshots
from apo_report.figures.report import report_figures
from apo_report.page import Report, write_report
from apo_report.runs import flat_settings, read_runs
from apo_report.tables import report_tables
from apo_report.tables.series import evaluated


def report(cfg: DictConfig) -> Path:
    """Write the tables, figures and page, and return the path of `report.html`.

    Raises:
        ConfigError: a folder does not exist, or a file in it is malformed.
    """
    contents = read_report(_folders(cfg), title=cfg.title, today=str(cfg.date))
    path = write_report(contents, Path(cfg.output_dir))
    found = contents.evaluations
    say(f"read: runs {contents.num_runs}, evaluations {len(found.results)}, oracle coverages {len(found.coverage)}")
    say(f"tables: {', '.join(table.name for table in contents.tables)}")
    say(f"figures: {', '.join(figure.name for figure in contents.figures) or 'none'}")
    if not found.results:
        say("no evaluation among them: apo evaluate run=FOLDER of each run, for main results and comparisons")
    for warning in contents.warnings:
        say(f"warning: {warning}")
    say(f"open {path}")
    return path


def read_report(folders: Sequence[Path], *, title: str, today: str) -> Report:
    """The content of the page about the runs and evaluations below the folders; raises `ConfigError`."""
    runs = read_runs(folders)
    evaluations = read_evaluations(folders, runs)
    trained = {item.result.model.algo for item in evaluations.results}
    defaults = training_defaults({run.algo for run in runs} | {algo for algo in trained if algo})
    measured = measurements(runs, evaluations, defaults)
    runs_with_snapshots = with_snapshots(runs, evaluations)
    return Report(
        title=title,
        date=today,
        num_runs=len(runs),
        apart=list(dict.fromkeys(item.block for item in evaluated(measured) if item.apart)),
        tables=report_tables(runs_with_snapshots, measured, evaluations.coverage, defaults),
        figures=report_figures(runs_with_snapshots, measured, defaults),
        evaluations=evaluations,
    )


def training_defaults(algos: set[str]) -> dict[str, dict[str, str]]:
    """The default settings of runs: stem of `algo=` → flat config, without the model's part; of those that exist."""
    found = {}
    for algo in algos.intersection(options_of("algo")):
        cfg = composed("train", [f"algo={algo}"], with_hydra=True)
        plain: Any = OmegaConf.to_container(cfg)
        own = {key: value for key, value in plain.items() if key not in ("model", "hydra")}
        found[algo] = flat_settings(own, cfg.hydra.runtime.choices)
    return found


def _folders(cfg: DictConfig) -> list[Path]:
    """The folders as given; of the two default folders those that exist."""
    given = [Path(str(folder)) for folder in ([cfg.runs] if not isinstance(cfg.runs, ListConfig) else cfg.runs)]
    missing = [folder for folder in given if not folder.is_dir()]
    if missing and (len(missing) == len(given) or cfg.runs != ["outputs", "multirun"]):
        raise ConfigError(f"runs has {missing[0]}, which is no folder: name folders of runs, runs=[outputs,multirun]")
    return [folder for folder in given if folder not in missing]

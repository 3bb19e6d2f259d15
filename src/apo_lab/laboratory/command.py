"""`apo lab`: run what is missing of an edition, show its progress, or make its page."""

from pathlib import Path

from omegaconf import DictConfig

from apo_lab.editions.protocol import load_protocol
from apo_lab.laboratory.registration import registration
from apo_lab.laboratory.runs import identity_of, show_progress, work_off
from apo_lab.reporting.laboratory import laboratory_page
from apo_lightning.common.console import say
from apo_lightning.errors import ConfigError
from apo_lightning.run.launching import launch_time


def laboratory(cfg: DictConfig) -> None:
    """Do `action`: `run` makes runs and page, `status` counts, `page` makes the page from the tables alone.

    Raises:
        ConfigError: as `work_off` and `laboratory_page`; or a page of tables that do not exist.
    """
    protocol = load_protocol(cfg.edition)
    cfg.output_dir = cfg.output_dir or f"outputs/lab/{Path(cfg.edition).stem}"
    cfg.tables = cfg.tables or f"{cfg.output_dir}/tables"
    if cfg.action == "status":
        show_progress(cfg, protocol, identity_of(protocol))
        return
    rows = Path(cfg.tables) / "runs.csv.gz"
    if cfg.action == "page" and not rows.is_file():
        raise ConfigError(
            f"{rows} does not exist: give tables= the folder of an edition's rows, or run apo lab run first"
        )
    try:
        if cfg.action == "run":
            work_off(cfg)
    finally:
        if rows.is_file():
            date = launch_time().strftime("%Y-%m-%d")
            page = laboratory_page(
                Path(cfg.tables),
                protocol,
                Path(cfg.output_dir) / "report",
                date=date,
                registration=registration(protocol),
            )
            say(f"open {page}")

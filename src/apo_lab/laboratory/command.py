"""`apo lab`: run what is missing of an edition, show its progress, or make its page."""

import contextlib
from pathlib import Path

from omegaconf import DictConfig

from apo_lab.editions.protocol import load_protocol
from apo_lab.laboratory.registration import identity_of
from apo_lab.laboratory.runs import show_progress, work_off
from apo_lab.laboratory.verifying import verify_row
from apo_lab.reporting import laboratory_page
from apo_lightning.common.checks import check_table, require_none_differs
from apo_lightning.common.console import say, show
from apo_lightning.common.files import folder_locked
from apo_lightning.errors import ConfigError
from apo_lightning.run.launching import launch_time


def laboratory(cfg: DictConfig) -> None:
    """Do `action`: `run` makes runs and page, `status` counts, `page` makes the page from the tables alone.

    `verify` makes one run again that has a row.

    Raises:
        ConfigError: as `work_off` and `laboratory_page`; or a page of tables that do not exist.
    """
    protocol = load_protocol(cfg.edition)
    cfg.output_dir = cfg.output_dir or f"outputs/lab/{Path(cfg.edition).stem}"
    cfg.tables = cfg.tables or f"{cfg.output_dir}/tables"
    rows = Path(cfg.tables) / "runs.csv.gz"
    if cfg.action == "page" and not rows.is_file():
        raise ConfigError(
            f"{rows} does not exist: give tables= the folder of an edition's rows, or run apo lab run first"
        )
    identity = identity_of(protocol)
    if cfg.action == "status":
        show_progress(cfg, protocol, identity)
        return
    if cfg.action == "verify":
        found = verify_row(cfg, protocol, identity)
        show(check_table(found))
        require_none_differs(found)
        return
    # With either folder in common, one laboratory would drop rows or checkpoints of the other.
    folders = sorted({Path(cfg.tables).resolve(), Path(cfg.output_dir).resolve()}) if cfg.action == "run" else ()
    with contextlib.ExitStack() as locks:
        for folder in folders:
            refusal = f"another apo lab is at work in {folder}: wait for it, or give other tables= and output_dir="
            locks.enter_context(folder_locked(folder, refusal))
        try:
            if folders:
                work_off(cfg, protocol, identity)
        finally:
            if rows.is_file():
                date, report = launch_time().strftime("%Y-%m-%d"), Path(cfg.output_dir) / "report"
                registered = identity["registration"]
                page = laboratory_page(rows.parent, protocol, report, date=date, registration=registered)
                say(f"open {page}")

"""A run of W&B that a resumed run continues."""

import secrets
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities.rank_zero import rank_zero_only

from apo_lightning.common.console import say
from apo_lightning.common.files import write_atomically

LONGEST_NAME = 128
"""Characters of a run's name that W&B accepts."""


def wandb_logger(save_dir: str, name: str = "", **settings: Any) -> WandbLogger:
    """Lightning's logger of the W&B run whose id is in `wandb/run_id` of the run's folder.

    Args:
        save_dir: folder of the run.
        name: shown by W&B, cut to 128 characters; empty: W&B chooses one.
        **settings: of `wandb.init`, such as project, group and mode.
    """
    return WandbLogger(experiment=_begin(Path(save_dir), name[:LONGEST_NAME], settings), save_dir=save_dir)


@rank_zero_only
def _begin(folder: Path, name: str, settings: dict[str, Any]) -> Any:
    """The W&B run; on other ranks None."""
    # Lightning's own call would pass `anonymous`, of which W&B warns on the terminal.
    import wandb

    path = folder / "wandb" / "run_id"
    if not path.is_file():
        write_atomically(path, secrets.token_hex(4).encode())
    quiet = wandb.Settings(silent=True)
    run = wandb.init(dir=folder, id=path.read_text(), resume="allow", name=name or None, settings=quiet, **settings)
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
    if run.offline:
        say(f"W&B: wandb sync {run.settings.sync_dir} uploads run {run.id}")
    elif run.url:
        say(f"W&B: {run.url}")
    return run

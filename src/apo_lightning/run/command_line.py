"""What the scripts at the top call: compose, run, and end with one line if something was wrong."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from apo_lightning.console import say
from apo_lightning.errors import Preempted
from apo_lightning.run.evaluating import evaluate
from apo_lightning.run.exporting import export
from apo_lightning.run.launching import register_launch_time
from apo_lightning.run.preflight import preflight
from apo_lightning.run.reporting import report
from apo_lightning.run.training import train
from apo_lightning.run.user_message import user_message

register_launch_time()  # on import: a process of submitit reads its configuration without `_main`

CONFIG_DIR = str(Path(__file__).resolve().parents[3] / "configs")


def train_from_command_line() -> None:
    """`train.py`."""
    _main("train", _train_or_preflight)


def evaluate_from_command_line() -> None:
    """`evaluate.py`."""
    _main("evaluate", lambda cfg: evaluate(cfg, list(HydraConfig.get().overrides.task)))


def report_from_command_line() -> None:
    """`report.py`."""
    _main("report", report)


def export_from_command_line() -> None:
    """`export.py`."""
    _main("export", export)


def _train_or_preflight(cfg: DictConfig) -> None:
    output_dir = Path(HydraConfig.get().runtime.output_dir)
    if not cfg.preflight:
        train(cfg, output_dir)
    elif status := preflight(cfg, output_dir):
        sys.exit(status)


def _main(config_name: str, work: Callable[[DictConfig], object]) -> None:
    # Hydra would print several lines of its own and hide where a bug is.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")

    def job(cfg: DictConfig) -> None:
        try:
            work(cfg)
        except Preempted as stopped:
            say(str(stopped))
            # Ranks that another one started would otherwise be taken for broken, and end it.
            sys.exit(Preempted.STATUS if getattr(rank_zero_only, "rank", 0) == 0 else 0)
        except Exception as error:
            message = user_message(error)
            if message is None:
                raise
            sys.exit(f"error: {message}")

    try:
        hydra.main(config_path=CONFIG_DIR, config_name=config_name, version_base="1.3")(job)()
    except InstantiationException:
        raise
    except (HydraException, OmegaConfBaseException) as error:
        sys.exit(f"error: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """What Hydra has to say of an override, without its search path."""
    parts = [str(error).split("Config search path")[0]]
    if error.__cause__ is not None:
        parts.append(str(error.__cause__).split("full_key")[0])
    return " ".join(" ".join(parts).split())

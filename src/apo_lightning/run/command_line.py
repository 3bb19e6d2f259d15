"""What the scripts at the top call: compose, run, and end with one line if something was wrong.

What does the work is imported once there is something to do: what Hydra refuses, and `--help`, must not wait for it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from apo_lightning.console import say
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.run.choices import CONFIG_DIR, expand_glob, missing_choice, refuse_null
from apo_lightning.run.launching import register_launch_time, use_expandable_segments
from apo_lightning.run.user_message import user_message

# On import: a process of submitit reads its configuration without `_main`. It imports this file for the functions that
# do the work, which therefore are all functions of this module.
register_launch_time()


def train_from_command_line() -> None:
    """Entry point of `train.py`."""
    _main("train", _train_or_preflight)


def evaluate_from_command_line() -> None:
    """Entry point of `evaluate.py`."""
    _main("evaluate", _evaluate)


def report_from_command_line() -> None:
    """Entry point of `report.py`."""
    _main("report", _report)


def export_from_command_line() -> None:
    """Entry point of `export.py`."""
    _main("export", _export)


def lab_from_command_line() -> None:
    """Entry point of `lab.py`."""
    _main("lab", _lab)


def pretrain_from_command_line() -> None:
    """Entry point of `pretrain.py`."""
    _main("pretrain", _pretrain)


def _train_or_preflight(cfg: DictConfig) -> None:
    output_dir = Path(HydraConfig.get().runtime.output_dir)
    if not cfg.preflight:
        from apo_lightning.run.training import train

        train(cfg, output_dir)
        return
    from apo_lightning.run.preflight import preflight

    if status := preflight(cfg, output_dir):
        sys.exit(status)


def _evaluate(cfg: DictConfig) -> None:
    from apo_lightning.run.evaluating import evaluate
    from apo_lightning.run.sweeping import is_swept

    evaluate(cfg, list(HydraConfig.get().overrides.task), is_swept=is_swept())


def _report(cfg: DictConfig) -> None:
    from apo_lightning.run.reporting import report

    report(cfg)


def _export(cfg: DictConfig) -> None:
    from apo_lightning.run.exporting import export

    export(cfg)


def _lab(cfg: DictConfig) -> None:
    from apo_lightning.run.laboratory import laboratory

    laboratory(cfg)


def _pretrain(cfg: DictConfig) -> None:
    from apo_lightning.run.pretraining import pretrain

    pretrain(cfg)


def _main(config_name: str, work: Callable[[DictConfig], object]) -> None:
    # Hydra would print several lines of its own and hide where a bug is.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    use_expandable_segments()

    def job(cfg: DictConfig) -> None:
        from apo_lightning.run.sweeping import each_job_a_run

        try:
            with each_job_a_run():
                work(cfg)
        except Preempted as stopped:
            say(str(stopped))
            from lightning.pytorch.utilities.rank_zero import rank_zero_only

            # Ranks that another one started would otherwise be taken for broken, and end it.
            sys.exit(Preempted.STATUS if getattr(rank_zero_only, "rank", 0) == 0 else 0)
        except Exception as error:
            message = user_message(error)
            if message is None:
                raise
            sys.exit(f"error: {message}")

    try:
        for argument in sys.argv[1:]:
            refuse_null(argument)
        sys.argv[1:] = map(expand_glob, sys.argv[1:])
        hydra.main(config_path=str(CONFIG_DIR), config_name=config_name, version_base="1.3")(job)()
    except InstantiationException:
        raise
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        sys.exit(f"error: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """Hydra's message on an override, without its search path."""
    if isinstance(error, MissingConfigException) and (line := missing_choice(error)) is not None:
        return line
    parts = [str(error).split("Config search path")[0]]
    if error.__cause__ is not None:
        parts.append(str(error.__cause__).split("full_key")[0])
    return " ".join(" ".join(parts).split())

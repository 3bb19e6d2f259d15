"""Commands that need to know how Hydra started them: once, or as one job of a sweep."""

import sys
from pathlib import Path
from typing import get_type_hints

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from apo_lightning.common.importing import no_garbage_searched
from apo_lightning.run.choices import typed_overrides
from apo_lightning.run.value_types import check_arguments


def train_or_preflight(cfg: DictConfig) -> None:
    """Train; with `preflight=true` print the plan instead."""
    if cfg.preflight:
        plan(cfg)
        return
    with no_garbage_searched():
        from apo_lightning.run.training import train

    _check_settings(cfg)
    train(cfg, Path(HydraConfig.get().runtime.output_dir))


def plan(cfg: DictConfig) -> None:
    """Print the plan of a training run, and exit with status 1 if it cannot work."""
    with no_garbage_searched():
        from apo_lightning.run.preflight import preflight

    _check_settings(cfg)
    if status := preflight(cfg, Path(HydraConfig.get().runtime.output_dir)):
        sys.exit(status)


def _check_settings(cfg: DictConfig) -> None:
    from apo_lightning.step.settings import StepSettings

    check_arguments(cfg, {"seed": int, **get_type_hints(StepSettings)})


def evaluate_policy(cfg: DictConfig) -> None:
    """Measure a policy; typed overrides and sweeps decide the folder of its results."""
    with no_garbage_searched():
        from apo_lightning.run.evaluating import evaluate
        from apo_lightning.run.sweeping import is_swept
        from apo_lightning.run.tasks import COUNTS

    check_arguments(cfg, {"seed": int, **dict.fromkeys(COUNTS, int | None)})
    evaluate(cfg, typed_overrides(), is_swept=is_swept())

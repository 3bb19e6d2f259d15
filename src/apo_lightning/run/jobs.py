"""Commands that need to know how Hydra started them: once, or as one job of a sweep."""

from pathlib import Path
from typing import get_type_hints

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from apo_lightning.common.importing import no_garbage_searched
from apo_lightning.run.choices import typed_overrides
from apo_lightning.run.value_types import check_arguments


def train_policy(cfg: DictConfig) -> None:
    """Train in the folder that Hydra made for the job."""
    with no_garbage_searched():
        from apo_lightning.run.training import train

    _check_settings(cfg)
    train(cfg, Path(HydraConfig.get().runtime.output_dir))


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

"""The work of commands that depends on how Hydra started them: once, or as one job of a sweep."""

import sys
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig


def train_or_preflight(cfg: DictConfig) -> None:
    """Train; with `preflight=true` print the plan instead."""
    output_dir = Path(HydraConfig.get().runtime.output_dir)
    if not cfg.preflight:
        from apo_lightning.run.training import train

        train(cfg, output_dir)
        return
    from apo_lightning.run.preflight import preflight

    if status := preflight(cfg, output_dir):
        sys.exit(status)


def evaluate_policy(cfg: DictConfig) -> None:
    """Measure a policy, knowing what was typed and whether it is one of a sweep."""
    from apo_lightning.run.evaluating import evaluate
    from apo_lightning.run.sweeping import is_swept

    evaluate(cfg, list(HydraConfig.get().overrides.task), is_swept=is_swept())

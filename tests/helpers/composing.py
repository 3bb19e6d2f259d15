"""Compose the real configuration in a test."""

from pathlib import Path

from omegaconf import DictConfig

from apo_lightning.run import choices

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"


def composed(*overrides: str, config_name: str = "train") -> DictConfig:
    return choices.composed(config_name, overrides)


def names(group: str) -> list[str]:
    return choices.options_of(group)

"""Compose the real configuration in a test."""

from pathlib import Path

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

ROOT = Path(__file__).resolve().parents[1]
CONFIGS = ROOT / "configs"


def composed(*overrides: str, config_name: str = "train") -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose(config_name, overrides=list(overrides))


def names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / group).glob("*.yaml"))

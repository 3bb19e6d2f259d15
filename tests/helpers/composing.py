"""Compose the real configuration in a test."""

from pathlib import Path

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig

from apo_lightning.model.policy import Policy
from apo_lightning.model.spec import PolicySpec
from apo_lightning.run import choices

ROOT = Path(__file__).resolve().parents[2]
CONFIGS = ROOT / "configs"
PAPER = {
    *(f"{model}_{algo}" for model in ("qwen7b", "qwen_math7b", "llama3b") for algo in ("grpo", "grpo_kl", "apo")),
    "qwen_math7b_nsr",
    "qwen_math7b_grpo_kl_error_only",
    *(f"sensitivity_pull_{value}" for value in ("0.0", "0.01", "0.02", "0.05")),
    *(f"sensitivity_push_{value}" for value in ("1.0", "1.1")),
    *(f"sensitivity_anchor_{value}" for value in ("4", "16")),
}


def composed(*overrides: str, config_name: str = "train") -> DictConfig:
    return choices.composed(config_name, overrides)


def tiny_spec(**changes: object) -> PolicySpec:
    """The model of `model=tiny`, with some of its settings changed."""
    return instantiate({**composed("model=tiny").model, **changes}, _convert_="all")


def tiny_policy(seed: int = 1, **changes: object) -> Policy:
    spec, cpu = tiny_spec(**changes), torch.device("cpu")
    return Policy(
        spec.load_model(seed=seed), spec.load_tokenizer(), spec.dtype(cpu), compiles_layers=spec.compile_layers
    )


def names(group: str) -> list[str]:
    return choices.options_of(group)

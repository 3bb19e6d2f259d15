"""A training checkpoint, averaged with the model before training, → Hugging Face folders."""

from pathlib import Path

from omegaconf import DictConfig, ListConfig

from apo_lightning.checkpoints.run_state import policy_tensors
from apo_lightning.checkpoints.small_files import TENSORS
from apo_lightning.checkpoints.tensors import load_tensors
from apo_lightning.common.console import quiet_libraries, say
from apo_lightning.errors import ConfigError
from apo_lightning.model.averaging import average, base_weights
from apo_lightning.run.exporting import find_trained, require_absent, untrained_policy, write


def average_with_base(cfg: DictConfig) -> list[Path]:
    """Write (1 − w)·θ + w·θ_base for each weight w, and return the folders; raises `ConfigError`.

    Source: Wortsman et al. 2022, "Robust fine-tuning of zero-shot models" (arXiv 2109.01903), Eq. 1.
    """
    weights = list(cfg.weight) if isinstance(cfg.weight, ListConfig) else [cfg.weight]
    for weight in weights:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight <= 1:
            raise ConfigError(f"weight is {weight}: give the weight of the model before training, from 0 to 1")
    run, checkpoint = find_trained(cfg)
    root = Path(cfg.to) if cfg.to is not None else run.folder / "averaged" / checkpoint.folder.name
    is_single = cfg.to is not None and len(weights) == 1
    folders = [root if is_single else root / f"w{weight:g}" for weight in weights]
    for folder in folders:
        require_absent(folder)
    quiet_libraries(run.folder / "export.log")
    policy = untrained_policy(run)
    base = base_weights(policy.model)
    for weight, folder in zip(weights, folders, strict=True):
        load_tensors(policy_tensors(policy), checkpoint.folder / TENSORS)
        average(dict(policy.model.named_parameters()), base, weight)
        write(policy, folder, cfg.dtype)
        say(f"{checkpoint.folder.name} of {cfg.run}, with weight {weight:g} of the base, is in {folder}")
    return folders

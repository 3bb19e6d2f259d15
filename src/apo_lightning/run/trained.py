"""`run=…`: the model config of a training run, with the weights that the run ended with."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from apo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """The parts of a training run that an evaluation reads."""

    folder: Path
    model: DictConfig
    """The run's `model` node, with the path of the final checkpoint."""
    reference: DictConfig
    """The run's `model` node as it was: what training began with."""
    algo: str
    """The stem of the run's `algo=`."""
    overrides: tuple[str, ...]
    """The run's Hydra overrides, as they were typed."""
    seed: int


def trained_run(folder: Path, overrides: Sequence[str]) -> TrainedRun:
    """Read a training run's folder.

    Args:
        folder: it must hold `.hydra/` and `checkpoints/final/`.
        overrides: of the evaluation.

    Raises:
        ConfigError: it is no training run, has no final checkpoint, or the model is named twice.
    """
    config, checkpoint = folder / ".hydra" / "config.yaml", folder / "checkpoints" / "final"
    if not config.is_file():
        raise ConfigError(f"run={folder} is no training run (it has no .hydra/config.yaml): give the folder of one")
    if not (checkpoint / "config.json").is_file():
        raise ConfigError(
            f"run={folder} has no checkpoints/final: it was stopped, or trained with callbacks=none; "
            "name its weights with model.path=… instead"
        )
    if any(override.lstrip("+~").startswith("model") for override in overrides):
        raise ConfigError("run= brings its own model config: leave model=… out, or give model.path=… without run=")
    composed = OmegaConf.load(config)
    reference = composed.model
    model = reference.copy()
    model.path, model.config = str(checkpoint), None
    hydra = OmegaConf.load(folder / ".hydra" / "hydra.yaml").hydra
    return TrainedRun(
        folder=folder,
        model=model,
        reference=reference,
        algo=str(hydra.runtime.choices.algo),
        overrides=tuple(OmegaConf.load(folder / ".hydra" / "overrides.yaml")),
        seed=int(composed.seed),
    )

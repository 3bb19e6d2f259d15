"""`run=…`: the part of a training run's configuration that an evaluation reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from apo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedRun:
    """The parts of a training run that an evaluation reads."""

    folder: Path
    reference: DictConfig
    """The run's `model` node: the model before training."""
    data: DictConfig
    """The run's `data` node."""
    lora: DictConfig | None
    """The run's adapters; None: all weights were trained."""
    algo: str
    """The stem of the run's `algo=`."""
    overrides: tuple[str, ...]
    """The run's Hydra overrides, as typed."""
    seed: int

    @property
    def final_model(self) -> DictConfig:
        """The run's `model` node, with the path of the final checkpoint; raises `ConfigError` if the run has none."""
        checkpoint = self.folder / "checkpoints" / "final"
        if not (checkpoint / "config.json").is_file():
            raise ConfigError(
                f"run={self.folder} has no checkpoints/final: it was stopped, or trained with callbacks=none; "
                "name its weights with model.path=… instead"
            )
        model = self.reference.copy()
        model.path, model.config = str(checkpoint), None
        return model


def trained_run(folder: Path, overrides: Sequence[str]) -> TrainedRun:
    """Read a training run's folder, given an evaluation's overrides; raises `ConfigError` if it is none."""
    config = folder / ".hydra" / "config.yaml"
    if not config.is_file():
        raise ConfigError(f"run={folder} is no training run (it has no .hydra/config.yaml): give the folder of one")
    if any(override.lstrip("+~").startswith("model") for override in overrides):
        raise ConfigError("run= brings its own model config: leave model=… out, or give model.path=… without run=")
    composed = OmegaConf.load(config)
    hydra = OmegaConf.load(folder / ".hydra" / "hydra.yaml").hydra
    return TrainedRun(
        folder=folder,
        reference=composed.model,
        data=composed.data,
        lora=composed.policy.lora,
        algo=str(hydra.runtime.choices.algo),
        overrides=tuple(OmegaConf.load(folder / ".hydra" / "overrides.yaml")),
        seed=int(composed.seed),
    )

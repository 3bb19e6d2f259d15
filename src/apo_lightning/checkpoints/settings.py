"""When to save and what to keep: the `checkpoint:` node of `configs/train.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch.distributed

from apo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When to save, and what to keep.

    Attributes:
        save_every: rollouts between two checkpoints; None: no saves by number of rollouts.
        save_after_minutes: save at the end of a rollout if the last checkpoint is this old; None: no saves by time. If
            both are None, only a stop signal saves.
        keep: number of newest checkpoints to keep. With 1 there is no other one if it turns out to be damaged.
        best: a held-out metric, `val/<name>/pass@<k>`: also keep the checkpoint where it is highest; None: do not.
        asynchronous: write while training continues, from a copy in host memory.
        snapshot_every: rollouts between two snapshots, which hold only the trained weights and are all kept; None: no
            snapshots.
    """

    save_every: int | None
    keep: int
    best: str | None
    asynchronous: bool
    snapshot_every: int | None = None
    save_after_minutes: float | int | None = None

    @property
    def is_on(self) -> bool:
        """Whether a run is saved without a stop signal."""
        return self.save_every is not None or self.save_after_minutes is not None

    def __post_init__(self) -> None:
        for name in ("save_every", "snapshot_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"checkpoint.{name} is {value}: give 1 or more{', or null' * (name != 'keep')}")
        if self.save_after_minutes is not None and not self.save_after_minutes > 0:
            raise ConfigError(
                f"checkpoint.save_after_minutes is {self.save_after_minutes}: give minutes above 0, or null for none"
            )
        if self.asynchronous and not torch.distributed.is_gloo_available():
            raise ConfigError(
                "checkpoint.asynchronous is true, but needs gloo, which this build of torch lacks: choose "
                "checkpoint.asynchronous=false"
            )

    def check(self, validation_names: Sequence[str], validation_samples: int) -> None:
        """Raise `ConfigError` if `best` is not a metric that the run will log."""
        known = [f"val/{name}/pass@{k}" for name in validation_names for k in sorted({1, validation_samples})]
        if self.best is not None and self.best not in known:
            raise ConfigError(f"checkpoint.best is {self.best}: choose one of {', '.join(known) or 'nothing'}")

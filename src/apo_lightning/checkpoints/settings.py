"""When to save and what to keep: the `checkpoint:` node of `configs/train.yaml`."""

from collections.abc import Sequence
from dataclasses import dataclass

from apo_lightning.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When to save, and what to keep.

    Attributes:
        save_every: rollouts between two checkpoints; None: only a stop signal saves.
        keep: number of newest checkpoints to keep. With 1 there is no other one if it turns out to be damaged.
        best: a held-out metric, `val/<name>/pass@<k>`: also keep the checkpoint where it is highest; None: do not.
        snapshot_every: rollouts between two snapshots, which hold only the trained weights and are all kept; None: no
            snapshots.
    """

    save_every: int | None
    keep: int
    best: str | None
    snapshot_every: int | None = None

    def __post_init__(self) -> None:
        for name in ("save_every", "snapshot_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"checkpoint.{name} is {value}: give 1 or more{', or null' * (name != 'keep')}")

    def check(self, validation_names: Sequence[str], validation_samples: int) -> None:
        """Raise `ConfigError` if `best` is not a metric that the run will log."""
        known = [f"val/{name}/pass@{k}" for name in validation_names for k in sorted({1, validation_samples})]
        if self.best is not None and self.best not in known:
            raise ConfigError(f"checkpoint.best is {self.best}: choose one of {', '.join(known) or 'nothing'}")

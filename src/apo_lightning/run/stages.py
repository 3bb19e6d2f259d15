"""`checkpoint=…`: the weights of a training run that are measured, final or intermediate."""

from dataclasses import dataclass
from pathlib import Path

from apo_lightning.checkpoints import snapshots_of
from apo_lightning.checkpoints.folder import Checkpoint, Position
from apo_lightning.common.console import say
from apo_lightning.errors import ConfigError

FINAL, ALL, BASE = "final", "all", "base"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One point of a training run."""

    step: int | None = None
    """Finished training steps, 0 for the model before training; None: the final weights."""
    snapshot: Checkpoint | None = None
    """The snapshot with the weights; None: the policy is loaded with them."""

    @property
    def folder(self) -> str:
        """The folder of its results, relative to that of the evaluation."""
        return "" if self.step is None else Position(step=self.step).name

    @property
    def identity(self) -> dict[str, object]:
        """Sizes and checksums of the snapshot's files, which identify the weights before they are read."""
        if self.step is None:
            return {}
        return {"snapshot": BASE if self.snapshot is None else dict(self.snapshot.header.files)}


def stages_of(run: Path | None, checkpoint: str) -> tuple[Stage, ...]:
    """The stages of a run that `checkpoint` (final, base, all or a snapshot's name) selects; raises `ConfigError`."""
    if checkpoint == FINAL or run is None:
        return (Stage(),)
    snapshots, refused = snapshots_of(run)
    for line in refused:
        say(f"skipped: {line}")
    named = {BASE: Stage(step=0)} | {
        found.folder.name: Stage(step=found.header.position.step, snapshot=found) for found in snapshots
    }
    if checkpoint == ALL and len(named) > 1:
        return tuple(named.values())
    if checkpoint in named:
        return (named[checkpoint],)
    if not snapshots:
        raise ConfigError(
            f"checkpoint={checkpoint}: {run} has no snapshots: train with checkpoint.snapshot_every=5, say, or "
            f"measure its end with checkpoint={FINAL}"
        )
    raise ConfigError(f"checkpoint={checkpoint}: {run} has {', '.join([FINAL, ALL, *named])}")

"""Finding the checkpoint from which a run resumes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from apo_lightning.checkpoints.folder import (
    MANIFEST,
    Checkpoint,
    complete_checkpoints,
    read_header,
    snapshots_of,
)
from apo_lightning.checkpoints.origin import require_unchanged
from apo_lightning.common.console import say
from apo_lightning.common.formatting import flatten
from apo_lightning.common.identity import Identity
from apo_lightning.errors import ConfigError

HORIZON = "schedule_horizon"
"""The setting that checkpoints hold as the number that it stands for."""
FREE = (
    HORIZON, "trainer", "engine", "callbacks", "logger", "checkpoint", "resume", "experiment",
    "tokens_per_microbatch", "kv_cache_gib", "gpu_memory_utilization",
    "model.gradient_checkpointing", "model.compile_layers",
)  # fmt: skip
"""Settings that may differ between a checkpoint's run and the resumed one, since they do not affect the results."""


def find_checkpoint(
    resume: str | None, output_dir: Path, config: Mapping[str, Any], identity: Identity
) -> Checkpoint | None:
    """Return the checkpoint that `resume` names; None: start from the beginning.

    `resume` is None, "auto" (the newest checkpoint in `output_dir`, if any) or the folder of a run or of a checkpoint;
    `config` is this run's, as nested plain data, and `identity` that of its model, data and code.

    Raises:
        ConfigError: the named folder has no usable checkpoint, its settings, model or data differ, or `output_dir` is
            that of another run, which would be overwritten.
    """
    found = _find(resume, output_dir, config)
    if found is not None:
        require_unchanged(f"checkpoint {found.folder}", found.header.identity, identity)
    return found


def _find(resume: str | None, output_dir: Path, config: Mapping[str, Any]) -> Checkpoint | None:
    own = output_dir / "checkpoints"
    if resume == "auto":
        return _newest_usable(own, config)
    if resume is None:
        _require_new(output_dir)
        return None
    folder = Path(resume).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"resume={resume}: no such folder; give auto, or the folder of a run or of a checkpoint")
    if not folder.resolve().is_relative_to(output_dir.resolve()):
        _require_new(output_dir)
    if (folder / MANIFEST).is_file() or folder.name.startswith("step_"):
        return _checked(Checkpoint(folder=folder, header=read_header(folder)), config)
    checkpoint = _newest_usable(folder / "checkpoints", config)
    if checkpoint is None:
        raise ConfigError(f"resume={resume}: {folder / 'checkpoints'} has no complete checkpoint")
    return checkpoint


def _require_new(output_dir: Path) -> None:
    own_checkpoints = complete_checkpoints(output_dir / "checkpoints")[0] or snapshots_of(output_dir)[0]
    if own_checkpoints:
        raise ConfigError(
            f"{output_dir} holds checkpoints of an earlier run (newest: {own_checkpoints[-1].folder.name}): "
            "continue it with resume=auto, or choose another hydra.run.dir"
        )
    if (output_dir / "metrics.csv").is_file():
        raise ConfigError(
            f"{output_dir} holds the metrics.csv of an earlier run, which this one would overwrite: choose another "
            "hydra.run.dir, or give resume=auto to start that run again"
        )


def _newest_usable(root: Path, config: Mapping[str, Any]) -> Checkpoint | None:
    checkpoints, refused = complete_checkpoints(root)
    for line in refused:
        say(f"ignored: {line}")
    return _checked(checkpoints[-1], config) if checkpoints else None


def _checked(checkpoint: Checkpoint, config: Mapping[str, Any]) -> Checkpoint:
    if not checkpoint.header.num_ranks:
        raise ConfigError(f"checkpoint {checkpoint.folder} is a snapshot, which holds only weights: name a checkpoint")
    different = list(setting_differences(checkpoint.header.config, config))
    if different:
        raise ConfigError(
            f"checkpoint {checkpoint.folder} has other settings: {'; '.join(different[:5])}: resume it with its own "
            "settings, or start a new run"
        )
    return checkpoint


def setting_differences(saved: Mapping[str, Any], own: Mapping[str, Any]) -> Iterator[str]:
    """What is not the same in two configurations, but for `FREE`, a clause each."""
    there, here = flatten(saved), flatten(own)
    for key in sorted(there.keys() | here.keys()):
        is_free = any(key == free or key.startswith(f"{free}.") for free in FREE)
        if not is_free and there.get(key) != here.get(key):
            yield f"{key} is {there.get(key, 'nothing')} there and {here.get(key, 'nothing')} here"

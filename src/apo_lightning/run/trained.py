"""`run=…`: a training run whose policy is measured or exported, and its points in training."""

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from apo_lightning.checkpoints.folder import Checkpoint, complete_checkpoints, snapshots_of, step_name
from apo_lightning.checkpoints.origin import OF_EXPORT, identity_of_run, read_export, read_origin, require_unchanged
from apo_lightning.common.console import say
from apo_lightning.common.files import read_yaml_text, write_atomically
from apo_lightning.common.identity import Identity
from apo_lightning.data.rows import Row
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.model.spec import PolicySpec
from apo_lightning.run.choices import targets_of
from apo_lightning.run.recipe import Recipe
from apo_lightning.run.sources import identity_of_held_out

FINAL, ALL, BASE = "final", "all", "base"
EVIDENCE = "evidence"
"""The folder of a published policy that has the files of its run."""
ONLY_READ = ("checkpoints", "rollouts", "wandb")
"""Folders of a run that no command writes to: a link in them may lead to another disk, and one of W&B does."""


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """The parts of a training run that an evaluation reads."""

    folder: Path
    """That has its settings, numbers and evaluations; of a published folder, its `EVIDENCE`."""
    final: Path
    """The folder of the final policy."""
    config: DictConfig
    """All of its settings."""
    algo: str
    """The stem of the run's `algo=`."""
    overrides: tuple[str, ...]
    """The run's Hydra overrides, as typed."""
    seed: int
    engine: str
    """The run's `engine=`."""
    temperature: float
    """The temperature at which the run sampled."""

    @classmethod
    def read(cls, folder: Path) -> "TrainedRun":
        """Read a training run's folder, or a published one; raises `ConfigError` if it is neither."""
        is_published = (folder / EVIDENCE / ".hydra").is_dir()
        root, folder = folder, folder / EVIDENCE if is_published else folder
        if not (folder / ".hydra" / "config.yaml").is_file():
            raise ConfigError(f"run={folder} is no training run (it has no .hydra/config.yaml): give the folder of one")
        _refuse_links_out_of(root, ONLY_READ if root == folder else ())
        composed, hydra, typed = (
            _read(folder / ".hydra" / f"{name}.yaml") for name in ("config", "hydra", "overrides")
        )
        try:
            for node in (composed.model, composed.data, composed.reward, composed.policy):
                OmegaConf.to_container(node)  # raises where it is none
            return cls(
                folder=folder,
                final=root if is_published else folder / "checkpoints" / "final",
                config=composed,
                algo=str(hydra.hydra.runtime.choices.algo),
                overrides=tuple(map(str, typed)),
                seed=int(composed.seed),
                engine=str(hydra.hydra.runtime.choices.get("engine", "auto")),
                temperature=float(composed.temperature),
            )
        except (OmegaConfBaseException, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"run={folder}: .hydra has no settings of a training run ({in_brief(error)})") from error

    @cached_property
    def recipe(self) -> Recipe:
        """The pieces of the run; its `model` is the model before training.

        The folder may come from anyone, and a `_target_` can name any function that is installed. So only those are
        called that an option of the same group names, in an installed package or in the user's own `configs/`; reading
        a piece raises `ConfigError` for another. A reward may take parts of the data, `${data.puzzle}`.
        """
        return Recipe(self.config, self._make)

    def _make(self, key: str) -> Any:
        node, group = OmegaConf.select(self.config, key), key.partition(".")[0]
        # Resolved, since ${…} may stand for a node with a _target_ of its own.
        known = (group, "data") if group == "reward" else (group,)
        self.require_known(None if node is None else OmegaConf.to_container(node, resolve=True), *known)
        return instantiate(node, _convert_="all")

    def require_known(self, node: object, *groups: str) -> None:
        """Raise `ConfigError` for a `_target_` in plain data that no option of the groups names; none given: of any."""
        known, group = set[str]().union(*map(targets_of, groups or [""])), (*groups, "GROUP")[0]
        for target in targets_in(node):
            if target not in known:
                raise ConfigError(
                    f"run={self.folder} names _target_: {target}, which no option of {group}= here names, so it is not "
                    f"called: if it is yours, put the option into configs/{group}/ of the working directory"
                )

    def held_out(self) -> dict[str, list[Row]]:
        """The problems that the run validated on, by set; raises `ConfigError` if they are no longer the same."""
        found = {name: rows for name, rows in self.recipe.source.load().validation.items() if rows}
        if found:
            require_unchanged(f"run={self.folder}", identity_of_run(self.folder), identity_of_held_out(found))
        return found

    def base_identity(self) -> Identity:
        """What the model before training is now."""
        return self.recipe.model.identity(self.recipe.tokenizer)

    @property
    def is_published(self) -> bool:
        """Whether it is a folder of `apo publish`."""
        return self.folder == self.final / EVIDENCE

    @property
    def final_model(self) -> PolicySpec:
        """The model at the end of the run.

        Raises:
            ConfigError: the run has none, or one that is not as it was written, or not of the run's end.
        """
        if not (self.final / OF_EXPORT).is_file():
            raise ConfigError(
                f"run={self.folder} has no checkpoints/final with an {OF_EXPORT}: it was stopped, trained with "
                "callbacks=none or by an earlier version; name its weights with model.path=… instead"
            )
        origin = (read_origin if self.is_published else read_export)(self.final)
        checkpoints, _ = complete_checkpoints(self.folder / "checkpoints")
        if checkpoints and (newest := checkpoints[-1].header.step) > origin.step:
            raise ConfigError(
                f"run={self.folder}: checkpoints/final is of step {origin.step}, and the run was trained to {newest}: "
                "continue it with resume=auto, which writes it again"
            )
        return replace(self.recipe.model, path=str(self.final), config=None)


def record_settings(cfg: DictConfig, hydra: Any, overrides: Sequence[str], folder: Path) -> None:
    """Write what `TrainedRun.read` reads, as Hydra would: that writes it before a run that is refused has ended."""
    composed = {"config": cfg, "hydra": {"hydra": hydra}, "overrides": [*overrides]}
    for name, node in composed.items():
        write_atomically(folder / ".hydra" / f"{name}.yaml", OmegaConf.to_yaml(OmegaConf.create(node)).encode())


def _read(path: Path) -> Any:
    try:
        return OmegaConf.create(read_yaml_text(path))
    except (YAMLError, RecursionError) as error:  # a tag that names Python, or a thousand brackets
        raise ConfigError(f"{path}: cannot be read ({in_brief(error)})") from error


def targets_in(node: object) -> Iterator[str]:
    """Every `_target_` in a node, however deep."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        for child in node.values():
            yield from targets_in(child)
    elif isinstance(node, list):
        for child in node:
            yield from targets_in(child)


def _refuse_links_out_of(folder: Path, besides: Collection[str]) -> None:
    """Raise `ConfigError` for a link through which a command's output would leave the run's folder."""
    for parent, folders, files in os.walk(folder):
        if Path(parent) == folder:
            folders[:] = [name for name in folders if name not in besides]
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() and not path.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(f"run={folder}: the link {path.relative_to(folder)} leads out of it; remove the link")


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
        return "" if self.step is None else step_name(self.step)

    @property
    def identity(self) -> dict[str, object]:
        """The snapshot's files, which identify the weights before they are read."""
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
        found.folder.name: Stage(step=found.header.step, snapshot=found) for found in snapshots
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

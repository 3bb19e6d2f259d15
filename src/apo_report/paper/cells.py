"""The list of cells, and what identifies the contents of one: its configuration and that of the run that it reads."""

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from apo_lightning.common.formatting import flatten
from apo_lightning.common.identity import sha256_of
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed, options_of

NO_CAUSE = frozenset({
    "run", "output_dir", "checkpoint", "callbacks", "logger", "resume", "experiment", "trainer",
    "tokens_per_microbatch", "samples_per_batch", "kv_cache_gib", "gpu_memory_utilization",
    "model.gradient_checkpointing", "model.compile_layers",
})  # fmt: skip
"""Keys and sections that the contents of a cell do not depend on; of `trainer` a run's `max_steps` counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperCell:
    """One unit of work with a folder of its own."""

    name: str
    """The folder below `output_dir`: `train/paper/llama3b_apo/seed_1`."""
    command: str
    """The command of `apo`: train, evaluate or coverage."""
    overrides: tuple[str, ...]
    folder: Path
    needs: "PaperCell | None" = None
    """The training run whose final weights this cell reads; None: it starts from the model of its configuration."""

    @property
    def arguments(self) -> list[str]:
        """The words behind `apo` that do the work, or continue it."""
        place = [f"hydra.run.dir={self.folder}", "resume=auto"]
        if self.command != "train":
            place = [f"output_dir={self.folder}"] + ([f"run={self.needs.folder}"] if self.needs else [])
        return [self.command, *self.overrides, *place]


@functools.cache
def config_of(cell: PaperCell) -> DictConfig:
    """The composed configuration, without the places of files; raises what Hydra raises on a wrong override."""
    return composed(cell.command, cell.overrides)


def list_cells(cfg: DictConfig) -> list[PaperCell]:
    """All cells, seed by seed: a paper that is stopped early has every method.

    Raises:
        ConfigError: an experiment or a model that does not exist, no seed, or a cell that another one needs is missing.
    """
    experiments, root = _experiments(cfg.experiments), Path(cfg.output_dir)
    if not cfg.seeds:
        raise ConfigError("seeds is []: give at least one, seeds=[1]")
    for key in ("distribution_of", "coverage_of", "bases"):
        known = experiments if key == "distribution_of" else options_of("model")
        if unknown := [name for name in cfg[key] if name not in known]:
            raise ConfigError(f"{key} has {unknown[0]}, which is none of {', '.join(known)}")

    def cell(name: str, command: str, overrides: Sequence[str], needs: PaperCell | None = None) -> PaperCell:
        return PaperCell(name=name, command=command, overrides=tuple(overrides), folder=root / name, needs=needs)

    cells = [
        cell(f"coverage/{name}", "coverage", [f"model={name}", *cfg.coverage_overrides]) for name in cfg.coverage_of
    ]
    cells += [
        cell(f"evaluate/base_{name}", "evaluate", [f"model={name}", *cfg.evaluate_overrides]) for name in cfg.bases
    ]
    for seed in cfg.seeds:
        for name in experiments:
            overrides = [f"experiment={name}", f"seed={seed}", *cfg.overrides]
            run = cell(f"train/{name}/seed_{seed}", "train", overrides)
            cells += [run, cell(f"evaluate/{name}/seed_{seed}", "evaluate", cfg.evaluate_overrides, run)]
            if name in cfg.distribution_of:
                cells.append(cell(f"distribution/{name}/seed_{seed}", "evaluate", cfg.distribution_overrides, run))
    return cells


def _experiments(wanted: Sequence[str]) -> list[str]:
    """The experiments that match one of the patterns, in the order of the patterns."""
    options, found = options_of("experiment"), []
    for pattern in wanted:
        matches = [name for name in options if fnmatchcase(name, pattern)]
        if not matches:
            raise ConfigError(f"experiments has {pattern}, which matches none of {', '.join(options)}")
        found += matches
    return list(dict.fromkeys(found))


def identity(cell: PaperCell) -> str:
    """SHA-256 of what the cell's contents depend on: its composed configuration without `NO_CAUSE`, and its run's."""
    flat = flatten(cast("dict[str, Any]", OmegaConf.to_container(config_of(cell), resolve=True)))
    kept = {
        key: value for key, value in flat.items() if NO_CAUSE.isdisjoint(accumulate(key.split("."), "{}.{}".format))
    }
    if cell.command == "train":
        kept["trainer.max_steps"] = flat["trainer.max_steps"]
    run = identity(cell.needs) if cell.needs else ""
    return sha256_of([run.encode(), json.dumps(kept, sort_keys=True).encode()])

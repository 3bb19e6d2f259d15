"""The runs of an edition that are still to be made, in the order in which they are made."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from omegaconf import DictConfig

from apo_lab.editions.protocol import Arm, Protocol, Stage, World
from apo_lab.editions.tuning import chosen
from apo_lightning.errors import ConfigError


class RunKey(NamedTuple):
    """What identifies a row of `runs.csv`."""

    world: str
    method: str
    variant: str
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One training run."""

    world: World
    stage: str
    arm: Arm
    seed: int
    overrides: tuple[str, ...]
    """The words behind `apo train`, without paths."""
    folder: Path
    base: Path
    """Folder of the world's base model."""
    decodings: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """`Protocol.decodings`."""
    is_decoded: bool = False

    @property
    def key(self) -> RunKey:
        """Its row in `runs.csv`."""
        return RunKey(self.world.name, self.arm.method, self.arm.variant, self.seed)

    @property
    def title(self) -> str:
        """World, method, settings and seed, for the terminal."""
        return f"{self.world.name:<12} {f'{self.arm.method} {self.arm.variant}'.strip()}, seed {self.seed}"


def missing_jobs(cfg: DictConfig, protocol: Protocol, runs: pd.DataFrame) -> list[Job]:
    """All runs without a row that can be planned now, stage by stage and in each seed by seed.

    Arms of tuned methods are planned when all runs of their tuning have a row.

    Raises:
        ConfigError: a filter names a stage, world or method that the edition has not, or leaves no run.
    """
    done = done_keys(runs)
    return [job for job in planned_jobs(cfg, protocol, runs) if job.key not in done]


def done_keys(runs: pd.DataFrame) -> Collection[RunKey]:
    """The rows that exist."""
    return {RunKey(*key) for key in zip(runs.world, runs.method, runs.variant, runs.seed.astype(int), strict=True)}


def planned_jobs(cfg: DictConfig, protocol: Protocol, runs: pd.DataFrame) -> list[Job]:
    """All runs of the edition that the filters leave, with or without a row; see `missing_jobs`."""
    _check(cfg, protocol)
    choice = chosen(protocol, runs)
    jobs = []
    for stage in protocol.stages:
        if cfg.stages is not None and stage.name not in cfg.stages:
            continue
        rounds = max(map(len, stage.seeds.values()))
        for place in range(rounds):
            for name, seeds in stage.seeds.items():
                if place < len(seeds) and (cfg.worlds is None or name in cfg.worlds):
                    arms = stage_arms(protocol, stage, protocol.worlds[name].family, choice)
                    jobs += [
                        _job(cfg, protocol, name, stage, arm, seeds[place])
                        for arm in arms
                        if cfg.only is None or arm.method in cfg.only
                    ]
    return jobs


def stage_arms(protocol: Protocol, stage: Stage, family: str, choice: Mapping[tuple[str, str], Arm]) -> list[Arm]:
    """The arms of a stage in worlds of a family, as far as the methods that they are made from are chosen."""
    if stage.tries_all:
        return [arm for method in stage.methods for arm in protocol.tuned[method].arms(family)]
    arms = [choice[method, family] for method in stage.methods if (method, family) in choice]
    source = stage.like or stage.rate_of
    if source is None:
        return arms + [Arm(method=name, overrides=overrides) for name, overrides in stage.arms.items()]
    start = choice.get((source, family))
    if start is None:
        return arms
    settings = start.overrides[1:] if stage.like else [s for s in start.overrides if s.startswith("optimizer.lr=")]
    return arms + [
        Arm(method=name, overrides=(own[0], *_kept(settings, own), *own[1:])) for name, own in stage.arms.items()
    ]


def progress(cfg: DictConfig, protocol: Protocol, runs: pd.DataFrame) -> dict[str, tuple[int, int]]:
    """Stage → (finished runs, all runs), as the filters leave them; runs that wait for a choice are counted."""
    done, jobs, found = done_keys(runs), planned_jobs(cfg, protocol, runs), {}
    for stage in protocol.stages:
        of_stage = [job for job in jobs if job.stage == stage.name]
        if cfg.stages is None or stage.name in cfg.stages:
            num_runs = protocol.num_runs(stage) if cfg.worlds is cfg.only is None else len(of_stage)
            found[stage.name] = sum(job.key in done for job in of_stage), num_runs
    return found


def _kept(settings: Sequence[str], own: Sequence[str]) -> list[str]:
    """The settings that are not given again: an override must not come twice."""
    keys = {override.partition("=")[0] for override in own}
    return [setting for setting in settings if setting.partition("=")[0] not in keys]


def _job(cfg: DictConfig, protocol: Protocol, world_name: str, stage: Stage, arm: Arm, seed: int) -> Job:
    world = protocol.worlds[world_name]
    variant = arm.variant.replace(" ", "_").replace("{", "").replace("}", "").replace(":", "-") or "default"
    return Job(
        world=world,
        stage=stage.name,
        arm=arm,
        seed=seed,
        overrides=(*world.run, *arm.overrides, f"seed={seed}", *stage.overrides, *cfg.overrides),
        folder=Path(cfg.output_dir) / world.name / arm.method / variant / f"seed_{seed}",
        base=Path(cfg.bases) / world.name,
        decodings=protocol.decodings(stage, arm.method),
        is_decoded=stage.is_decoded,
    )


def _check(cfg: DictConfig, protocol: Protocol) -> None:
    methods = {*protocol.tuned, *(arm for stage in protocol.stages for arm in stage.arms)}
    known = {"stages": [stage.name for stage in protocol.stages], "worlds": [*protocol.worlds], "only": sorted(methods)}
    for key, names in known.items():
        for name in cfg[key] or ():
            if name not in names:
                raise ConfigError(f"{key} has '{name}': choose from {', '.join(names)}")
        if cfg[key] is not None and not cfg[key]:
            raise ConfigError(f"{key} is empty: name one or more of {', '.join(names)}, or null for all")
    if cfg.processes < 1:
        raise ConfigError(f"processes is {cfg.processes}: give 1 or more")

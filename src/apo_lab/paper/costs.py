"""GPU-hours of a cell, as `apo preflight` counts them."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from omegaconf import DictConfig

from apo_lab.paper.cells import Cell, config_of
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed
from apo_plan.plan import plan_run, time_of

SECONDS_PER_HOUR = 3600.0
SAMPLING = ("generate", "old_logprobs")
"""Phases of a training step that an evaluation has too: sampling, and a forward over the samples."""


class _StepCost(NamedTuple):
    """The plan of one training step."""

    device_seconds: dict[str, float]
    """By phase, of all devices together."""
    num_completions: int
    max_steps: int


def hours_of_cells(cells: Sequence[Cell], overrides: Sequence[str]) -> dict[str, float | str]:
    """GPU-hours of each cell by its name, on a CPU the hours of its processes; a text says why preflight cannot say.

    `overrides` are those of `apo preflight`: rates, and what is expected of a step. A training run: the seconds of a
    step times the number of steps and of devices. An evaluation: its completions at the seconds per completion of
    sampling and scoring in a training run of the same model. Preflight has no plan for coverage, nor for a model
    without a training run.
    """
    runs = [cell for cell in cells if cell.command == "train"]
    return {cell.name: _hours(cell, runs, overrides) for cell in cells}


def _hours(cell: Cell, runs: Sequence[Cell], overrides: Sequence[str]) -> float | str:
    try:
        if cell.command == "coverage":
            raise ConfigError("preflight has no plan for coverage")
        # All seeds have one plan.
        own = (word for word in _run_of(cell, runs).overrides if not word.startswith("seed="))
        step = _step_cost((*own, *overrides))
        seconds = sum(step.device_seconds.values()) * step.max_steps
        if cell.command == "evaluate":
            sampled = sum(step.device_seconds.get(phase, 0.0) for phase in SAMPLING)
            seconds = sampled / step.num_completions * _num_samples(config_of(cell))
    except ConfigError as error:
        return str(error)
    return seconds / SECONDS_PER_HOUR


def _run_of(cell: Cell, runs: Sequence[Cell]) -> Cell:
    """The training run whose plan a cell is counted with."""
    if cell.command == "train" or cell.needs is not None:
        return cell.needs or cell
    model = config_of(cell).model.name
    found = next((run for run in runs if config_of(run).model.name == model), None)
    if found is None:
        raise ConfigError(f"no training run of {model} is listed")
    return found


@functools.cache
def _step_cost(overrides: tuple[str, ...]) -> _StepCost:
    cfg = composed("preflight", overrides)
    plan = plan_run(cfg)
    time = time_of(cfg, plan)
    return _StepCost(
        device_seconds={phase: seconds * plan.ranks.world_size for phase, seconds in time.phases.items()},
        num_completions=cfg.prompts_per_step * cfg.group_size,
        max_steps=cfg.trainer.max_steps,
    )


def _num_samples(cfg: DictConfig) -> int:
    """Completions of an evaluation."""
    total = 0
    for benchmark in cfg.benchmark.values():
        limit = cfg.limit or benchmark.limit or benchmark.num_problems
        total += min(limit, benchmark.num_problems) * (cfg.num_samples or benchmark.num_samples)
    return total

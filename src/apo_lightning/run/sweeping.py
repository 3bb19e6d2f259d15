"""Jobs of a sweep that start their own ranks: each rank works on its job as if it were a single run."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch.distributed
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment, TorchElasticEnvironment
from omegaconf import read_write

from apo_lightning.common.process_group import has_process_group

_SWEPT = "APO_LIGHTNING_SWEPT"
"""Environment variable of ranks that a job of a sweep has started."""


def is_swept() -> bool:
    """Whether this process works on a job of a sweep, possibly as a rank that the first process of the job started."""
    return HydraConfig.get().mode is RunMode.MULTIRUN or _SWEPT in os.environ


@contextmanager
def each_job_a_run(prefix_length: int = 1) -> Iterator[None]:
    """Make Lightning's launcher start ranks of this job, in this job's folder.

    The launcher starts ranks with the command line. With that of a sweep each rank would run the whole sweep in
    separate folders, and the second job would start no ranks, since the environment of the first says that they exist.
    `prefix_length` is the number of words before the overrides.
    """
    if _ranks_are_there():
        yield
        return
    hydra: Any = HydraConfig.get()
    arguments, variables = sys.argv, dict(os.environ)
    with read_write(hydra):
        hydra.run.dir = hydra.runtime.output_dir  # the launcher passes it to the ranks
    os.environ[_SWEPT] = "1"
    own = single(arguments[prefix_length:], hydra.overrides.task, hydra.overrides.hydra)
    sys.argv = [*arguments[:prefix_length], *own]
    try:
        yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(variables)
        if has_process_group():
            torch.distributed.destroy_process_group()


def _ranks_are_there() -> bool:
    """Whether torchrun or `srun` started the ranks: they go through a sweep together."""
    launchers = (TorchElasticEnvironment, SLURMEnvironment)
    return LightningEnvironment().creates_processes_externally or any(launcher.detect() for launcher in launchers)


def single(arguments: Sequence[str], task: Sequence[str], hydra: Sequence[str]) -> list[str]:
    """A sweep's arguments for one job, with its overrides of our settings (`task`) and of Hydra's.

    Example:
        >>> single(["-m", "-cd", "mine", "seed=1,2", "algo=apo"], ["seed=2", "algo=apo"], ["hydra.mode=MULTIRUN"])
        ['-cd', 'mine', 'seed=2', 'algo=apo', 'hydra.mode=RUN']
    """
    given = get_args_parser().parse_args(arguments)
    flags = [word for word in arguments if word not in {*given.overrides, "-m", "--multirun"}]
    return [*flags, *task, *(word for word in hydra if not word.startswith("hydra.mode=")), "hydra.mode=RUN"]

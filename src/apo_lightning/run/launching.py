"""Processes that torchrun or SLURM started agree on the time at which the run began, which names its folder.

Every command imports this file to read its configuration; torch and Lightning are imported only when a run begins.
"""

import functools
import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

if TYPE_CHECKING:
    from torch.distributed import Store

LONGEST_WAIT = timedelta(minutes=10)
"""Longest time until the last process of a launch reads its configuration."""

_stores: "list[Store]" = []
"""Stores that are kept until the process ends: the first rank's serves the others, and later the process group."""


@functools.cache
def launch_time() -> datetime:
    """When the run began; the same in all processes of a launch by torchrun or `srun`, on all nodes.

    Lightning's own launcher passes the folder to the processes that it starts.
    """
    now = datetime.now()
    import torch.distributed
    from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment

    launcher = next((kind() for kind in (TorchElasticEnvironment, SLURMEnvironment) if kind.detect()), None)
    if launcher is None or launcher.world_size() == 1:
        return now
    rank, world_size = launcher.global_rank(), launcher.world_size()
    address = f"tcp://{launcher.main_address}:{launcher.main_port}"
    store, _, _ = next(torch.distributed.rendezvous(address, rank, world_size, timeout=LONGEST_WAIT))
    _stores.append(store)
    if rank == 0:
        store.set("apo_lightning/launch_time", now.isoformat())
    return datetime.fromisoformat(store.get("apo_lightning/launch_time").decode())


ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables with the settings of torch's GPU allocator; torch reads the first that is set and ignores the others."""


def use_expandable_segments() -> None:
    """Let torch's allocator on a GPU grow its segments, unless the user has settings for it; before torch is imported.

    Micro-batches differ in length and moments come after the first backward: blocks of fixed segments would leave holes
    that no later tensor fits into. vLLM switches it off for its sleeping memory.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"


def use_short_spins() -> None:
    """Let a thread of OpenMP that waits for others sleep soon, unless the user has settings; before torch is imported.

    By default it spins up to 300,000 times. On a core that another program needs too, the threads that it waits for do
    not run meanwhile: steps of a small model took forty times as long.
    """
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def sweep_folder() -> str | None:
    """The folder of the sweep that this job belongs to; None: a single run."""
    hydra = HydraConfig.get()
    return hydra.sweep.dir if hydra.mode is RunMode.MULTIRUN else None


def register_resolvers() -> None:
    """Values of configurations: `${launched:%H-%M-%S}`, cached for all jobs of a sweep, and `${sweep:}`."""
    OmegaConf.register_new_resolver("sweep", sweep_folder, replace=True)
    OmegaConf.register_new_resolver("launched", lambda form: launch_time().strftime(form), replace=True, use_cache=True)

"""Processes that torchrun or SLURM started agree on when the run began, and so on the folder it leaves behind.

Every command imports this file, to read its configuration; torch and Lightning only where a run begins.
"""

import functools
import os
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from omegaconf import OmegaConf

if TYPE_CHECKING:
    from torch.distributed import Store

LONGEST_WAIT = timedelta(minutes=10)
"""Time until the last process of a launch has come as far as reading its configuration."""

_stores: "list[Store]" = []
"""Stores that are kept until the process ends: the first rank's serves the others, and later the process group."""


@functools.cache
def launch_time() -> datetime:
    """When the run began; the same in all processes of a launch by torchrun or `srun`, on all nodes.

    Lightning's own launcher tells the processes that it starts which folder is theirs.
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
"""What torch reads the settings of a GPU's allocator from; the first that is set counts, whole."""


def use_expandable_segments() -> None:
    """Let torch's allocator on a GPU grow its segments, unless the user has settings for it; on a CPU without effect.

    Micro-batches differ in length and moments come after the first backward: blocks of fixed segments would leave
    holes that no later tensor fits into. To be called before torch is imported. Launched ranks inherit it. vLLM's
    sleeping memory is no part of it: vLLM switches it off while it allocates that.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"


def register_launch_time() -> None:
    """`${launched:%H-%M-%S}` in configurations: `launch_time`, formatted.

    Cached, it goes with a sweep to jobs that run in other processes, on other machines and hours later.
    """
    OmegaConf.register_new_resolver("launched", lambda form: launch_time().strftime(form), replace=True, use_cache=True)

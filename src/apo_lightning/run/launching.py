"""The processes of a launch: the time at which the run began, its folder, and the end of one of them.

Every command imports this file to read its configuration; torch and Lightning are imported only when a run begins.
"""

import contextlib
import functools
import itertools
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from apo_lightning.common.console import saying
from apo_lightning.common.files import LOCK, folder_locked, remove_remains
from apo_lightning.common.launch import SRUN, check_launch, launch
from apo_lightning.errors import ConfigError, in_brief
from apo_lightning.run.user_message import own_frame

if TYPE_CHECKING:
    from torch.distributed import Store

WRITTEN = ("", ".hydra", "rollouts", "checkpoints", "checkpoints/snapshots")
"""The places of its folder that a run writes to."""
LONGEST_WAIT = timedelta(minutes=10)
"""Longest time until the last process of a launch reads its configuration."""

_stores: "list[Store]" = []
"""Stores that are kept until the process ends: the first rank's serves the others, and later the process group."""


@functools.cache
def launch_time() -> datetime:
    """When the run began; the same in all processes of a launch, on all nodes.

    Lightning's own launcher passes the folder to the processes that it starts, so that they do not ask.
    """
    now, own = datetime.now(), launch()
    if own.size == 1 or own.launcher is None:
        return now
    import torch.distributed
    from lightning.fabric.plugins.environments import LightningEnvironment, SLURMEnvironment

    environment = SLURMEnvironment() if own.launcher is SRUN else LightningEnvironment()
    address = f"tcp://{environment.main_address}:{environment.main_port}"
    try:
        with saying(f"waiting for the other {own.size - 1} of {own.size} processes that {own.launcher.name} starts"):
            store, _, _ = next(torch.distributed.rendezvous(address, own.rank, own.size, timeout=LONGEST_WAIT))
    except RuntimeError as error:
        raise ConfigError(
            f"rank {own.rank} has waited {LONGEST_WAIT} for the {own.size} processes of {own.launcher.name} at "
            f"{address}, and they did not all come ({in_brief(error)}): start them all, or none by {own.launcher.name}"
        ) from error
    _stores.append(store)
    if own.rank == 0:
        store.set("apo_lightning/launch_time", now.isoformat())
    return datetime.fromisoformat(store.get("apo_lightning/launch_time").decode())


def end_with_peers() -> None:
    """Let a rank that another process has started end when a rank that it works with has ended.

    It may be inside a collective that no other rank joins: NCCL waits there for hours, no exception is raised and no
    Python handler of a signal runs. So a thread watches. Lightning's launcher is the first rank itself: its end is that
    of this process's parent. torchrun's agent sends SIGTERM to the ranks that are left, and kills them 30 s later; the
    run's own handler would wait for all ranks, in order to save. An agent that has all its ranks was itself asked to
    stop, and then the run saves.
    """
    if "LOCAL_RANK" not in os.environ or launch().size == 1:
        return
    agent, num_ranks = os.getppid(), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    arrived, arrives = os.pipe()
    os.set_blocking(arrives, False)
    signal.set_wakeup_fd(arrives, warn_on_full_buffer=False)  # written to at once, whatever the main thread does

    def watch() -> None:
        while os.getppid() == agent:
            if select.select([arrived], [], [], 1.0)[0] and signal.SIGTERM in os.read(arrived, 64):
                ranks = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
                if "TORCHELASTIC_RUN_ID" in os.environ and len(ranks) < num_ranks:
                    break
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="end with peers").start()


ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
"""Variables with the settings of torch's GPU allocator; torch reads the first that is set and ignores the others."""


def set_defaults_of_torch() -> None:
    """Two variables that torch reads when it is imported, unless the user has settings of their own.

    Its allocator on a GPU grows its segments: micro-batches differ in length and moments come after the first backward,
    and blocks of fixed segments would leave holes that no later tensor fits into. vLLM switches it off for its sleeping
    memory. A thread of OpenMP that waits for others sleeps soon. By default it spins up to 300,000 times; on a core
    that another program needs too, the threads that it waits for do not run meanwhile: steps of a small model took
    forty times as long.
    """
    if not any(name in os.environ for name in ALLOCATOR_VARIABLES):
        os.environ[ALLOCATOR_VARIABLES[0]] = "expandable_segments:True"
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & set(os.environ):
        os.environ["GOMP_SPINCOUNT"] = "1000"


def sweep_folder() -> str | None:
    """The folder of the sweep that this job belongs to; None: a single run."""
    hydra = HydraConfig.get()
    return hydra.sweep.dir if hydra.mode is RunMode.MULTIRUN else None


def launched(form: str, *, _root_: Any) -> str:
    """The time of the launch in a folder's name; raises `ConfigError` before it waits for ranks that nobody starts."""
    if launch().size > 1 and (trainer := _root_.get("trainer")) is not None:
        from apo_lightning.run.devices import requested_devices

        check_launch(requested_devices(trainer)[1], trainer.num_nodes)
    return launch_time().strftime(form)


def new_folder(path: str) -> str:
    """Make the folder `path`, or `path_2`, `path_3`, … where there is one; the same for all processes of a launch."""
    launch_time()  # then they have met
    folder = Path(path)
    if launch().rank == 0:
        folder.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(2):
            try:
                folder.mkdir()
                break
            except FileExistsError:
                folder = Path(f"{path}_{number}")
        for store in _stores:
            store.set(f"apo_lightning/{path}", str(folder))
    return _stores[0].get(f"apo_lightning/{path}").decode() if _stores else str(folder)


@contextlib.contextmanager
def own_folder(folder: Path) -> Iterator[None]:
    """Work alone in a folder; raises `ConfigError` if another process does.

    Where nothing else was and is, the log of a plan or a refused run goes, unless an error is to be read in it.
    """
    refusal = f"another process is at work in {folder}: wait for it, or choose another hydra.run.dir"
    with folder_locked(folder, refusal):
        remove_remains(*(folder / place for place in WRITTEN))
        lock, log = folder / LOCK, folder / "run.log"
        was_empty = {*folder.glob("*")} == {lock}
        try:
            yield
        finally:
            is_read = (error := sys.exception()) is not None and own_frame(error) is not None
            if was_empty and {*folder.glob("*")} == {lock, log} and not is_read:
                log.unlink()


def register_resolvers() -> None:
    """Values of configurations, for all jobs of a sweep alike: `${launched:%H}`, `${new_folder:a/b}`, `${sweep:}`."""
    OmegaConf.register_new_resolver("sweep", sweep_folder, replace=True)
    OmegaConf.register_new_resolver("launched", launched, replace=True)
    OmegaConf.register_new_resolver("new_folder", new_folder, replace=True, use_cache=True)

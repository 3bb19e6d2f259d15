"""Problems of the machine, found before a run."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from apo_lightning.common.formatting import GIB


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the machine or the configuration."""

    level: Literal["error", "warning"]
    """`error` where the run cannot work, else `warning`."""
    text: str
    """One line that names the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory and cores that this process may use."""

    memory_bytes: int
    available_bytes: int
    """Memory that no other process uses."""
    num_cores: int
    """Cores that this process may run on."""


def this_machine() -> Machine:
    """Memory and cores as the kernel reports them."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = Path("/proc/meminfo").read_text().splitlines()
    available = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    cores = len(os.sched_getaffinity(0))
    return Machine(memory_bytes=total, available_bytes=available[0] if available else total, num_cores=cores)


def disk_findings(folder: Path, needed_bytes: int) -> Iterator[Finding]:
    """Too little disk space for the files of a run below `folder`, which need not exist yet."""
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    if needed_bytes > free:
        yield Finding(
            "error",
            f"checkpoints need {needed_bytes / GIB:.1f} GiB and {existing} has {free / GIB:.1f} GiB free: set "
            "hydra.run.dir to a larger disk",
        )


def memory_findings(machine: Machine, needed_bytes: int, num_processes: int) -> Iterator[Finding]:
    """Processes that together need more memory than is free: an error where the machine has less than that."""
    if needed_bytes > machine.available_bytes:
        yield Finding(
            "error" if needed_bytes > machine.memory_bytes else "warning",
            f"{num_processes} process{'es' * (num_processes > 1)} of the run need up to {needed_bytes / GIB:.1f} GiB, "
            f"and of this machine's {machine.memory_bytes / GIB:.1f} GiB {machine.available_bytes / GIB:.1f} GiB are "
            "free: choose a smaller model or tokens_per_microbatch, fewer processes or a larger machine",
        )


def device_findings(device_bytes: int, peak_bytes: int) -> Iterator[Finding]:
    """A GPU with less memory than the plan needs."""
    if peak_bytes > device_bytes:
        yield Finding(
            "error",
            f"the plan needs up to {peak_bytes / GIB:.1f} GiB of a GPU that has {device_bytes / GIB:.1f} GiB: lower "
            "tokens_per_microbatch or gpu_memory_utilization, or take more GPUs",
        )


def thread_findings(machine: Machine, threads_per_process: int, num_processes: int) -> Iterator[Finding]:
    """More threads than cores: two threads on one core can be ten times slower than one."""
    if threads_per_process * num_processes > machine.num_cores:
        best = max(1, machine.num_cores // num_processes)
        is_least = threads_per_process <= best
        remedy = f"start {machine.num_cores} processes at most" if is_least else f"set OMP_NUM_THREADS={best}"
        yield Finding(
            "warning",
            f"{num_processes} process{'es' * (num_processes > 1)} of {threads_per_process} thread"
            f"{'s' * (threads_per_process > 1)} on {machine.num_cores} cores slow each other down: {remedy}",
        )

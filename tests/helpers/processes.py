"""Processes that begin with everything imported: they are forked from one that has imported it once.

Imports are nine of the ten seconds of a short run. `running.run_cold` starts from nothing, as a user does.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from composing import ROOT

CONTEXT = multiprocessing.get_context("forkserver")
# No vLLM, which replaces parts of torch, and no beartype, which draws from the generator that vLLM must leave alone.
CONTEXT.set_forkserver_preload(["pytest", "apo_lightning.run.training", "apo_lightning.run.evaluating"])


def on_two_ranks(work: Callable[..., None], *arguments: object) -> None:
    """`work(rank, *arguments)` in two processes, of which the first error is raised here."""
    mp.start_processes(work, arguments, nprocs=2, start_method="forkserver")


def in_a_group(work: Callable[..., None], folder: Path, *arguments: object) -> None:
    """`work(rank, folder, *arguments)` in two processes that are one group of torch's."""
    on_two_ranks(_in_a_group, work, folder, arguments)


def _in_a_group(rank: int, work: Callable[..., None], folder: Path, arguments: tuple[object, ...]) -> None:
    torch.set_num_threads(1)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(minutes=3))
    work(rank, folder, *arguments)
    dist.destroy_process_group()


@dataclass(frozen=True)
class Script:
    """A script that runs."""

    processes: list[BaseProcess]
    folder: tempfile.TemporaryDirectory[str]

    def wait(self) -> list[int | None]:
        """The status of each process, once all have ended."""
        for process in self.processes:
            process.join()
        return [process.exitcode for process in self.processes]

    @property
    def said(self) -> str:
        """On both streams, of all ranks."""
        return _said(self.folder.name).read_text()

    def finish(self) -> str:
        """What it said, once it has ended well."""
        status = self.wait()
        assert not any(status), f"{status}: {self.said}"
        return self.said


def start_script(name: str, *arguments: str, num_ranks: int = 1, cwd: Path = ROOT, **environment: str) -> Script:
    """`python train.py ARGUMENTS` in the folder `cwd`, or `apo NAME ARGUMENTS` of a NAME without an ending.

    Several ranks are told what torchrun tells them.
    """
    folder = tempfile.TemporaryDirectory()
    port = str(free_port())
    processes: list[BaseProcess] = []
    for rank in range(num_ranks):
        ranks = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(num_ranks)}
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
        variables = {**environment, **(ranks | address if num_ranks > 1 else {})}
        process = CONTEXT.Process(target=_run_script, args=(name, arguments, variables, cwd, folder.name), daemon=True)
        process.start()
        processes.append(process)
    return Script(processes, folder)


def _said(folder: str) -> Path:
    return Path(folder) / "said.txt"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _run_script(name: str, arguments: tuple[str, ...], environment: dict[str, str], cwd: Path, folder: str) -> None:
    os.environ.update(environment)
    os.chdir(cwd)
    # Python itself reads the variable at its start alone.
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    torch.set_num_threads(1)
    # A job in the background of a script ignores Ctrl-C, and so do its children.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    is_file = name.endswith(".py")
    sys.argv = [name, *arguments] if is_file else ["apo", name, *arguments]
    with _output_to(_said(folder)):
        try:
            if is_file:
                runpy.run_path(str(cwd / name), run_name="__main__")
            else:
                runpy.run_module("apo_lightning", run_name="__main__")
        finally:
            # multiprocessing leaves them out.
            atexit._run_exitfuncs()


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Both streams of this process, of what is not Python too."""
    with path.open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    yield

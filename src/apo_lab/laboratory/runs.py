"""Makes an edition's runs in a pool of processes: base models first, then what `runs.csv` has no row of."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from omegaconf import DictConfig, OmegaConf, open_dict

from apo_lab.editions.protocol import Protocol, load_protocol
from apo_lab.laboratory.jobs import Job, missing_jobs, progress
from apo_lab.laboratory.published import Rows, append, read_runs
from apo_lab.laboratory.registration import commit, registration
from apo_lightning.common.console import say
from apo_lightning.common.files import write_atomically
from apo_lightning.common.formatting import duration
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed


class Ended(NamedTuple):
    """What a worker made of a job."""

    rows: Rows | None
    """None: it failed."""
    seconds: float


def show_progress(cfg: DictConfig, protocol: Protocol, identity: Mapping[str, str]) -> None:
    """Print the edition, and how many runs of each stage are done."""
    say(f"edition {protocol.name}, registration {identity['registration']}")
    say(f"commit {identity['commit'] or 'none'}, {cfg.processes} processes, tables in {cfg.tables}")
    for name, (num_done, num_runs) in progress(cfg, protocol, _rows(cfg, identity)).items():
        say(f"  {name:<12} {num_done:>4} of {num_runs:>4} runs done")


def identity_of(protocol: Protocol) -> dict[str, str]:
    """What every row carries: the commit of the code and the registration of the edition."""
    return {"commit": commit(), "registration": registration(protocol)}


def work_off(cfg: DictConfig) -> None:
    """Make every run of the edition that has no row yet, and add its rows.

    Each process executes one run after the other, so that libraries are loaded once. A killed run resumes from its last
    checkpoint when the command is repeated.

    Raises:
        ConfigError: an unknown edition, stage, world or method, or no process; or a run failed, raised after all
            others have finished.
    """
    protocol = load_protocol(cfg.edition)
    identity = identity_of(protocol)
    missing = missing_jobs(cfg, protocol, _rows(cfg, identity))
    show_progress(cfg, protocol, identity)
    failed: list[Job] = []
    seconds: list[float] = []
    with _workers(cfg.processes) as pool:
        _make_bases(cfg, protocol, {job.world.name for job in missing}, pool)
        # Arms of tuned methods are missing jobs only after their tuning.
        while jobs := [job for job in missing_jobs(cfg, protocol, _rows(cfg, identity)) if job not in failed]:
            futures = {
                pool.submit(_attempt, job.title, job.folder, partial(train_job, job, identity)): job for job in jobs
            }
            for future in as_completed(futures):
                job, ended = futures[future], future.result()
                if ended.rows is None:
                    failed.append(job)
                    say(f"{job.title} failed in {duration(ended.seconds)}")
                    continue
                append(Path(cfg.tables), ended.rows)
                seconds.append(ended.seconds)
                counts = progress(cfg, protocol, _rows(cfg, identity)).values()
                left = sum(num_runs - num_done for num_done, num_runs in counts)
                time_left = duration(left * sum(seconds) / len(seconds) / cfg.processes)
                say(f"{job.title} done in {duration(ended.seconds)}; {left} left, about {time_left}")
    if failed:
        raise ConfigError(
            f"{len(failed)} runs failed: {failed[0].folder / 'error.txt'} says why of the first; "
            "the same command tries them again"
        )


def _rows(cfg: DictConfig, identity: Mapping[str, str]) -> pd.DataFrame:
    return read_runs(Path(cfg.tables), identity["registration"])


def _make_bases(cfg: DictConfig, protocol: Protocol, worlds: Collection[str], pool: ProcessPoolExecutor) -> None:
    """Make the base models that are missing; `pretrain` knows whether a model is that of its configuration."""
    futures: dict[Future[Ended], str] = {}
    for name, world in protocol.worlds.items():
        if name in worlds and world.base:
            folder = Path(cfg.bases) / name
            futures[pool.submit(_attempt, f"{name:<12} base", folder, partial(_base, world.base, folder))] = name
    for future in as_completed(futures):
        name, ended = futures[future], future.result()
        if ended.rows is None:
            raise ConfigError(f"the base model of {name} failed: {Path(cfg.bases) / name / 'error.txt'} says why")
        say(f"{name:<12} base done in {duration(ended.seconds)}")


@contextlib.contextmanager
def _workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes of one thread each, which end with this one."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        raise


def _end_with_parent(parent: int) -> None:
    """End this worker when its parent dies: it would write into the folders of the next laboratory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _attempt(title: str, folder: Path, work: Callable[[], Rows]) -> Ended:
    """Do a job in a worker; its output goes to `output.txt` of its folder, the traceback of an error to `error.txt`."""
    say(f"{title} begins")
    started, rows = time.monotonic(), None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.txt").unlink(missing_ok=True)
    try:
        with (folder / "output.txt").open("a") as output, contextlib.redirect_stdout(output):
            rows = work()
    except Exception:
        (folder / "error.txt").write_text(traceback.format_exc())
    return Ended(rows, time.monotonic() - started)


def _base(overrides: tuple[str, ...], folder: Path) -> Rows:
    from apo_lab.pretraining.base_models import pretrain

    pretrain(composed("pretrain", [*overrides, f"output_dir={folder}"]))
    return Rows(runs=[], curves=[])


def train_job(job: Job, identity: Mapping[str, str]) -> Rows:
    """Make a run in this process."""
    from apo_lab.laboratory.decoding import measure_decodings
    from apo_lab.laboratory.harvest import harvest
    from apo_lightning.run import train

    paths = [f"model.path={next(job.base.glob('*/base.json')).parent}"] if job.world.base else []
    cfg = composed("train", [*job.overrides, *paths, "resume=auto"], with_hydra=True)
    choices = cfg.hydra.runtime.choices
    with open_dict(cfg):
        del cfg.hydra
    # Where Hydra would write them, for `apo evaluate run=` and `apo report`.
    nodes = {"config": cfg, "hydra": {"hydra": {"runtime": {"choices": choices}}}, "overrides": list(job.overrides)}
    for name, node in nodes.items():
        text = OmegaConf.to_yaml(OmegaConf.create(node))
        write_atomically(job.folder / ".hydra" / f"{name}.yaml", text.encode())
    train(cfg, job.folder)
    if job.decodings:
        measure_decodings(cfg, job.folder / "checkpoints" / "final", job.decodings, job.folder / "decodings")
    rows = harvest(job, cfg, identity)
    _drop_scores(job.folder)
    return rows


def _drop_scores(folder: Path) -> None:
    """Delete log-probs of every evaluation point and resumable checkpoints: megabytes a run, with all rows made."""
    # The checkpoints first: a run that could resume from its last step would score nothing, and miss the rest.
    for path in folder.glob("checkpoints/step_*"):
        shutil.rmtree(path)
    for path in [*folder.glob("exact/*.npz"), *folder.glob("decodings/*/*.npz")]:
        path.unlink()

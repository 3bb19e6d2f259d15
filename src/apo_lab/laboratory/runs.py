"""Makes an edition's runs in a pool of processes: base models first, then what `runs.csv` has no row of."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TypeVar

import pandas as pd
from omegaconf import DictConfig, open_dict

from apo_lab.editions.protocol import Protocol
from apo_lab.laboratory.jobs import Job, missing_jobs, progress
from apo_lab.laboratory.published import Rows, append, read_runs
from apo_lightning.common.console import say
from apo_lightning.common.formatting import duration
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed

Made = TypeVar("Made")
"""What a job returns."""


def show_progress(cfg: DictConfig, protocol: Protocol, identity: Mapping[str, str]) -> None:
    """Print the edition, and how many runs of each stage are done."""
    say(f"edition {protocol.name}, registration {identity['registration']}")
    say(f"commit {identity['commit'] or 'none'}, {cfg.processes} processes, tables in {cfg.tables}")
    for name, (num_done, num_runs) in progress(cfg, protocol, _rows(cfg, identity)).items():
        say(f"  {name:<12} {num_done:>4} of {num_runs:>4} runs done")


def work_off(cfg: DictConfig, protocol: Protocol, identity: Mapping[str, str]) -> None:
    """Make every run of the edition that has no row yet, and add its rows.

    Each process executes one run after the other, so that libraries are loaded once. A killed run resumes from its last
    checkpoint when the command is repeated.

    Raises:
        ConfigError: an unknown stage, world or method, or no process; or a run failed, raised after all others have
            finished.
    """
    missing = missing_jobs(cfg, protocol, _rows(cfg, identity))
    show_progress(cfg, protocol, identity)
    failed: list[Job] = []
    with _workers(cfg.processes) as pool:
        _make_bases(missing, pool)
        started, num_made = time.monotonic(), 0
        # Arms of tuned methods are missing jobs only after their tuning.
        while jobs := [job for job in missing_jobs(cfg, protocol, _rows(cfg, identity)) if job not in failed]:
            futures = {
                pool.submit(_attempt, job.title, job.folder, partial(train_job, job, identity)): job for job in jobs
            }
            for future in as_completed(futures):
                if (rows := future.result()) is None:
                    failed.append(futures[future])
                    continue
                append(Path(cfg.tables), rows)
                num_made += 1
                counts = progress(cfg, protocol, _rows(cfg, identity)).values()
                left = sum(num_runs - num_done for num_done, num_runs in counts)
                say(f"{left} runs left, about {duration(left * (time.monotonic() - started) / num_made)}")
    if failed:
        raise ConfigError(
            f"{len(failed)} runs failed: {failed[0].folder / 'error.txt'} says why of the first; "
            "the same command tries them again"
        )


def _rows(cfg: DictConfig, identity: Mapping[str, str]) -> pd.DataFrame:
    return read_runs(Path(cfg.tables), identity["registration"])


def _make_bases(missing: Sequence[Job], pool: ProcessPoolExecutor) -> None:
    """Make the base models of jobs; `pretrain` knows whether a model is that of its configuration."""
    of_worlds = {job.world.name: job for job in missing if job.world.base}
    futures = {
        pool.submit(_attempt, f"{name:<12} base", job.base, partial(make_base, job)): job
        for name, job in of_worlds.items()
    }
    for future in as_completed(futures):
        if future.result() is None:
            job = futures[future]
            raise ConfigError(f"the base model of {job.world.name} failed: {job.base / 'error.txt'} says why")


@contextlib.contextmanager
def _workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes of one thread each, which end with this one."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        raise


def _end_with_parent() -> None:
    """End this worker when its parent dies: it would write into the folders of the next laboratory."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _attempt(title: str, folder: Path, work: Callable[[], Made]) -> Made | None:
    """Do a job in a worker; None: it failed.

    Its output goes to `output.txt` of its folder, the traceback of an error to `error.txt`.
    """
    say(f"{title} begins")
    started, made = time.monotonic(), None
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "error.txt").unlink(missing_ok=True)
    try:
        with (folder / "output.txt").open("a") as output, contextlib.redirect_stdout(output):
            made = work()
    except Exception:
        (folder / "error.txt").write_text(traceback.format_exc())
    say(f"{title} {'failed' if made is None else 'done'} in {duration(time.monotonic() - started)}")
    return made


def make_base(job: Job) -> Path:
    """Make the base model of a job's world in this process, unless it exists."""
    from apo_lab.pretraining.base_models import pretrain

    return pretrain(composed("pretrain", [*job.world.base, f"output_dir={job.base}"]))


def train_job(job: Job, identity: Mapping[str, str]) -> Rows:
    """Make a run in this process."""
    from apo_lab.laboratory.decoding import measure_decodings
    from apo_lab.laboratory.harvest import harvest
    from apo_lightning.run import train
    from apo_lightning.run.trained import record_settings

    paths = [f"model.path={next(job.base.glob('*/base.json')).parent}"] if job.world.base else []
    cfg = composed("train", [*job.overrides, *paths, "resume=auto"], with_hydra=True)
    hydra = cfg.hydra
    with open_dict(cfg):
        del cfg.hydra
    train(cfg, job.folder, record=partial(record_settings, cfg, hydra, job.overrides))
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

"""Schedules an edition's runs over processes: base models first, then what `runs.csv` has no row of."""

import contextlib
import multiprocessing
import os
import shutil
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict

from apo_lab.editions.protocol import load_protocol
from apo_lab.laboratory.jobs import Job, base_job, missing_jobs
from apo_lab.laboratory.power import check_power
from apo_lab.laboratory.published import Rows, append, read_runs
from apo_lab.laboratory.registration import commit, registration
from apo_lab.laboratory.view import LaboratoryView
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed

LONGEST_SILENCE_S = 60.0


def work_off(cfg: DictConfig) -> None:
    """Make every run of the edition that has no row yet, and add its rows.

    Each process executes one run after the other, so that libraries are loaded once. A killed run resumes from its last
    checkpoint when the command is repeated.

    Raises:
        ConfigError: an unknown edition, stage, world or method, or no process; as `check_power`, before the first run;
            or a run failed, raised after all others have finished.
    """
    protocol, tables = load_protocol(cfg.edition), Path(cfg.tables)
    identity = {"commit": commit(), "registration": registration(protocol)}
    rows = read_runs(tables, identity["registration"])
    if rows.empty:
        check_power(protocol)
    missing = missing_jobs(cfg, protocol, rows)
    view = LaboratoryView(cfg, protocol, identity)
    failed: list[Job] = []
    with _workers(cfg.processes) as submit:
        _make_bases({job.world.name: base_job(cfg, job.world) for job in missing if job.world.base}, submit, view)
        running: dict[Future[Rows | None], Job] = {}
        while True:
            busy = {job.key for job in (*running.values(), *failed)}
            found = read_runs(tables, identity["registration"])
            ready = [job for job in missing_jobs(cfg, protocol, found) if job.key not in busy]
            for job in ready[: cfg.processes - len(running)]:
                running[submit(job, protocol.base_weights, identity)] = job
                view.begin(job)
            if not running:
                break
            for future in _wait(running, view):
                job, rows = running.pop(future), future.result()
                if rows is None:
                    failed.append(job)
                else:
                    append(tables, rows)
                view.end(job, is_failed=rows is None)
    if failed:
        raise ConfigError(
            f"{len(failed)} runs failed: {failed[0].folder / 'error.txt'} says why of the first; "
            "the same command tries them again"
        )


_Submit = Callable[[Job, tuple[float, ...], Mapping[str, str]], "Future[Rows | None]"]
"""The rows of the finished job; None: it failed."""


def _make_bases(jobs: Mapping[str, Job], submit: _Submit, view: LaboratoryView) -> None:
    """Make the base models that are missing; `pretrain` knows whether a model is that of its configuration."""
    futures = {submit(job, (), {}): job for job in jobs.values()}
    for job in futures.values():
        view.begin(job)
    while futures:
        for future in _wait(futures, view):
            job = futures.pop(future)
            if future.result() is None:
                raise ConfigError(f"the base model of {job.world.name} failed: {job.folder / 'error.txt'} says why")
            view.end(job, is_failed=False)


def _wait(running: Mapping["Future[Rows | None]", Job], view: LaboratoryView) -> "set[Future[Rows | None]]":
    """Wait until a job ends; a minute without one prints what is running."""
    while not (done := wait(running, timeout=LONGEST_SILENCE_S, return_when=FIRST_COMPLETED).done):
        view.show_running()
    return done


@contextlib.contextmanager
def _workers(processes: int) -> Iterator[_Submit]:
    """Start processes of one thread each, which end with this one."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))
    try:
        yield lambda job, base_weights, identity: pool.submit(_do, job, base_weights, identity)
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


def _do(job: Job, base_weights: tuple[float, ...], identity: Mapping[str, str]) -> Rows | None:
    """Execute one job in a worker; None after an error, whose traceback is in `error.txt`."""
    job.folder.mkdir(parents=True, exist_ok=True)
    try:
        with (job.folder / "output.txt").open("a") as output, contextlib.redirect_stdout(output):
            rows = _base(job) if job.arm is None else _run(job, base_weights, identity)
    except Exception:
        (job.folder / "error.txt").write_text(traceback.format_exc())
        return None
    (job.folder / "error.txt").unlink(missing_ok=True)
    return rows


def _base(job: Job) -> Rows:
    from apo_lab.pretraining.base_models import pretrain

    pretrain(composed("pretrain", [*job.overrides, f"output_dir={job.folder}"]))
    return Rows(runs=[], curves=[])


def _run(job: Job, base_weights: tuple[float, ...], identity: Mapping[str, str]) -> Rows:
    from apo_lab.laboratory.averages import measure_averages
    from apo_lab.laboratory.harvest import harvest
    from apo_lightning.run import train

    paths = [f"model.path={next(job.base.glob('*/base.json')).parent}"] if job.world.base else []
    cfg = composed("train", [*job.overrides, *paths, "resume=auto"], with_hydra=True)
    choices = cfg.hydra.runtime.choices
    with open_dict(cfg):
        del cfg.hydra
    # Where Hydra would write them, for `apo evaluate run=` and `apo report`.
    folder = job.folder / ".hydra"
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(cfg, folder / "config.yaml")
    OmegaConf.save(OmegaConf.create({"hydra": {"runtime": {"choices": choices}}}), folder / "hydra.yaml")
    OmegaConf.save(OmegaConf.create(list(job.overrides)), folder / "overrides.yaml")
    train(cfg, job.folder)
    averages = job.folder / "averages" if job.is_averaged else None
    if averages is not None:
        measure_averages(cfg, job.folder / "checkpoints" / "final", base_weights, averages)
    rows = harvest(job, cfg, averages, identity)
    _drop_scores(job.folder)
    return rows


def _drop_scores(folder: Path) -> None:
    """Delete log-probs of every evaluation point and resumable checkpoints: megabytes a run, with all rows made."""
    # The checkpoints first: a run that could resume from its last step would score nothing, and miss the rest.
    for path in folder.glob("checkpoints/step_*"):
        shutil.rmtree(path)
    for path in [*folder.glob("exact/*.npz"), *folder.glob("averages/*.npz")]:
        path.unlink()

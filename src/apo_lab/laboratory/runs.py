"""Schedules the laboratory's runs over processes: base models first, then every method, puzzle and seed."""

import contextlib
import itertools
import json
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from apo_lab.laboratory.view import LaboratoryView
from apo_lab.reporting.laboratory import laboratory_report
from apo_lab.reporting.laboratory.reading import BASELINES, REVIVAL, SWEEP
from apo_lightning.common.console import say
from apo_lightning.common.files import to_json, write_atomically
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed, options_of
from apo_lightning.run.launching import launch_time

FINISHED = "finished.json"
"""In the folder of a finished run: its overrides and seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of the laboratory."""

    puzzle: str
    method: str
    """A name of `methods`, "base" for the model that all of them start from, or with the prefix `BASELINES` a method
    whose last policy is measured in other ways, without training."""
    seed: int
    overrides: tuple[str, ...]
    folder: Path
    after: Path | None = None
    """The folder of the run whose last policy this one starts from; None: it starts from the base model."""

    @property
    def is_base(self) -> bool:
        """True for the supervised run that trains a base model."""
        return self.method == "base"

    def finished(self) -> dict[str, Any] | None:
        """The record of the finished run; None while it is unfinished, or where its settings were others."""
        path = self.folder / FINISHED
        record = json.loads(path.read_text()) if path.is_file() else None
        return record if record is not None and record["overrides"] == list(self.overrides) else None


def laboratory(cfg: DictConfig) -> Path:
    """Run what is missing, and return the folder of all runs.

    Each process executes one run after the other, so that libraries are loaded once. A killed run resumes from its last
    checkpoint when the command is repeated; finished runs are kept.

    Raises:
        ConfigError: an unknown puzzle or method, no seed or no process; or a run failed, raised after all others
            have finished.
    """
    jobs, root = plan(cfg), Path(cfg.output_dir)
    runs = [job for job in jobs if not job.is_base]
    missing = [job for job in runs if job.finished() is None]
    # A finished base model is checked again: `pretrain` knows whether it is that of its configuration.
    needed = [job for job in jobs if job.is_base and any(job.puzzle == run.puzzle for run in missing)]
    view = LaboratoryView(runs, cfg.processes)
    with _workers(cfg.processes) as start:
        failed = _work_off([*needed, *missing], start, view, cfg.processes)
    if any(job.finished() is not None for job in runs):
        path = laboratory_report(root, date=launch_time().strftime("%Y-%m-%d"))
        say(f"open {path}")
    if failed:
        raise ConfigError(
            f"{len(failed)} of {len(jobs)} runs failed: {failed[0].folder / 'error.txt'} says why of the first; "
            "the same command tries them again"
        )
    return root


def plan(cfg: DictConfig) -> list[Job]:
    """All runs, base models first, then seed by seed: a laboratory that is stopped early has every method."""
    methods = {**cfg.methods, **cfg.controls}
    names = list(methods) if cfg.only is None else list(cfg.only)
    _check(cfg, methods, names)
    bases = [
        Job(
            puzzle=puzzle,
            method="base",
            seed=0,
            overrides=(f"data={puzzle}", f"output_dir={cfg.bases}", *cfg.base_overrides),
            folder=Path(cfg.output_dir) / puzzle / "base",
        )
        for puzzle in cfg.puzzles
    ]
    grid = list(itertools.product(cfg.seeds, cfg.puzzles))
    controlled = [(seed, puzzle) for seed, puzzle in grid if puzzle in cfg.controls_on and seed in cfg.control_seeds]
    runs = [
        _job(cfg, puzzle, name, seed, methods[name])
        for seed, puzzle in grid
        for name in names
        if name in cfg.methods or (seed, puzzle) in controlled
    ]
    revivals = [
        _job(cfg, puzzle, f"{REVIVAL}{name}", seed, methods[name], after=_folder(cfg, puzzle, "grpo", seed))
        for seed, puzzle in controlled
        for name in cfg.revivals
        if {name, "grpo"} <= set(names)
    ]
    baselines = [
        replace(run, method=method, folder=_folder(cfg, run.puzzle, method, run.seed), after=run.folder)
        for run in runs
        for method in [f"{BASELINES}{run.method}"]
        if run.method in cfg.baselines_of
    ]
    sweeps = [
        _job(cfg, puzzle, f"{SWEEP}{name}", seed, ("algo=apo", *overrides))
        for seed, puzzle in itertools.product(cfg.sweep_seeds, cfg.puzzles)
        if puzzle in cfg.controls_on
        for name, overrides in cfg.sweeps.items()
    ]
    return [*bases, *runs, *revivals, *baselines, *sweeps]


def _check(cfg: DictConfig, methods: Mapping[str, object], names: Sequence[str]) -> None:
    for name in names:
        if name not in methods:
            raise ConfigError(f"only has '{name}': choose from {', '.join(methods)}")
    options = [option.rpartition("/") for option in options_of("experiment")]
    puzzles = [name for folder, _, name in options if folder == "lab"]
    for puzzle in cfg.puzzles:
        if puzzle not in puzzles:
            raise ConfigError(f"puzzles has '{puzzle}': choose from {', '.join(puzzles)}")
    if not cfg.seeds or not cfg.puzzles or cfg.processes < 1:
        raise ConfigError(
            f"seeds is {list(cfg.seeds)}, puzzles {list(cfg.puzzles)} and processes {cfg.processes}: "
            "give at least one of each"
        )


def _job(
    cfg: DictConfig, puzzle: str, method: str, seed: int, overrides: Sequence[str], after: Path | None = None
) -> Job:
    base = f"{cfg.bases}/{puzzle}"
    start = (f"model.path={base}",)
    if after is not None:
        start = (f"model.path={after / 'checkpoints' / 'final'}", f"reference_path={base}")
    return Job(
        puzzle=puzzle,
        method=method,
        seed=seed,
        overrides=(f"experiment=lab/{puzzle}", *overrides, f"seed={seed}", *start, *cfg.overrides),
        folder=_folder(cfg, puzzle, method, seed),
        after=after,
    )


def _folder(cfg: DictConfig, puzzle: str, method: str, seed: int) -> Path:
    return Path(cfg.output_dir) / puzzle / method / f"seed_{seed}"


def _work_off(
    jobs: Sequence[Job], start: Callable[[Job], "Future[bool]"], view: LaboratoryView, processes: int
) -> list[Job]:
    """Execute the jobs, those of a puzzle after its base model, and return those that failed."""
    waiting, running, failed = list(jobs), {}, []
    while waiting or running:
        missing = {job.puzzle for job in (*waiting, *running.values(), *failed) if job.is_base}
        ready = [
            job
            for job in waiting
            if job.is_base or (job.puzzle not in missing and (job.after is None or (job.after / FINISHED).is_file()))
        ]
        for job in ready[: processes - len(running)]:
            waiting.remove(job)
            running[start(job)] = job
            view.begin(job)
        if not running:
            break  # the waiting jobs depend on a job that failed
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            job = running.pop(future)
            is_failed = not future.result()
            view.end(job, is_failed=is_failed)
            failed += [job] if is_failed else []
    return failed


@contextlib.contextmanager
def _workers(processes: int) -> Iterator[Callable[[Job], "Future[bool]"]]:
    """Start processes of one thread each, which end with this one."""
    os.environ["OMP_NUM_THREADS"] = "1"  # read by the workers when they import torch
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent, initargs=(os.getpid(),))
    try:
        yield lambda job: pool.submit(_do, job)
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


def _do(job: Job) -> bool:
    """Execute one job in a worker, and return whether it succeeded; `error.txt` has the traceback of an error."""
    job.folder.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    try:
        with (job.folder / "output.txt").open("a") as output, contextlib.redirect_stdout(output):
            _run(job)
    except Exception:
        (job.folder / "error.txt").write_text(traceback.format_exc())
        return False
    (job.folder / "error.txt").unlink(missing_ok=True)
    record = {"overrides": list(job.overrides), "seconds": time.monotonic() - started}
    write_atomically(job.folder / FINISHED, to_json(record, indent=1))
    return True


def _run(job: Job) -> None:
    from apo_lab.laboratory.baselines import measure_baselines
    from apo_lab.pretraining.base_models import pretrain
    from apo_lightning.run import train

    if job.is_base:
        pretrain(composed("pretrain", job.overrides))
        return
    if job.method.startswith(BASELINES):
        assert job.after is not None
        measure_baselines(composed("train", job.overrides), job.after, job.folder)
        return
    cfg = composed("train", [*job.overrides, "resume=auto"], with_hydra=True)
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

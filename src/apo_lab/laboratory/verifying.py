"""`apo lab verify`: one run that has a row in the published tables is made again, and compared with it."""

import contextlib
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from apo_lab.editions.protocol import Protocol
from apo_lab.laboratory.jobs import RunKey, done_keys, planned_jobs
from apo_lab.laboratory.published import HASHES, KEY, read_runs
from apo_lab.laboratory.runs import make_base, train_job
from apo_lightning.common.checks import Check, check, require_alike
from apo_lightning.errors import ConfigError

STORED = 1e-5
"""Of numbers with `published.DIGITS` digits, relative and absolute."""
NOT_AGAIN = ("seconds", "commit")


def verify_row(cfg: DictConfig, protocol: Protocol, identity: Mapping[str, str]) -> list[Check]:
    """Make the first run that has a row and that the filters leave again, and compare numbers and hashes.

    Raises:
        ConfigError: there is none, or as `planned_jobs`.
    """
    rows = read_runs(Path(cfg.tables), identity["registration"])
    jobs = [job for job in planned_jobs(cfg, protocol, rows) if job.key in done_keys(rows)]
    if not jobs:
        raise ConfigError(
            f"tables={cfg.tables} has no row of registration {identity['registration']} that is asked for"
        )
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "output.txt").open("w") as output:
        job = replace(jobs[0], folder=Path(folder) / "run")
        with contextlib.redirect_stdout(output):
            if job.world.base:
                make_base(job)
            made = train_job(job, identity).runs
    published = {RunKey(**{name: row[name] for name in KEY}): row for row in rows.to_dict("records")}
    found = []
    for own in made:
        key = RunKey(**{name: own[name] for name in KEY})
        title = f"{job.title.strip()}{key.method.removeprefix(job.arm.method)}"
        found.append(check(f"{title}: numbers", partial(_numbers, published.get(key, {}), own)))
        found.append(check(f"{title}: hashes", partial(_hashes, published.get(key, {}), own)))
    return found


def _numbers(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    compared = {name: value for name, value in here.items() if name not in (*HASHES, *NOT_AGAIN)}
    return f"{require_alike({name: there.get(name) for name in compared}, compared, tolerance=STORED)} numbers"


def _hashes(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    names = [name for name in HASHES if name not in (*NOT_AGAIN, "weights_sha256")]
    require_alike({name: there.get(name) for name in names}, {name: here[name] for name in names})
    if there["weights_sha256"] != here["weights_sha256"]:
        raise ConfigError("the weights are others to the bit, as on another machine or with other versions")
    return "of settings, base model and weights"

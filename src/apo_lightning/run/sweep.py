"""`-m`: the jobs of a sweep in this process, of which none ends the others."""

import shlex
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig

from apo_lightning.common.console import say
from apo_lightning.common.launch import launch
from apo_lightning.errors import ConfigError
from apo_lightning.run.commands import Command


class Sweep:
    """The jobs of one command; a single run has none."""

    def __init__(self, command: Command) -> None:
        self._command = command
        self._begun: list[Sequence[str]] = []
        """The overrides of each job."""
        self._failed: dict[int, Sequence[str]] = {}
        """Number of a job → its overrides."""

    def begin_job(self, cfg: Any) -> None:
        """Say which job begins; raises `ConfigError` for one of several ranks: each would begin the sweep again."""
        own: Any = HydraConfig.get()
        if self._command.uses_devices and cfg.trainer.devices not in (1, "auto") and launch().size == 1:
            raise ConfigError(
                f"trainer.devices is {cfg.trainer.devices} in a sweep, whose jobs share this process: start one run "
                "after the other, or each as a SLURM job with hydra/launcher=submitit_slurm"
            )
        self._begun.append(own.overrides.task)
        say(f"job {own.job.num} of the sweep: {shlex.join(own.overrides.task)}")

    def go_on_after(self, ended: SystemExit | Exception) -> bool:
        """Say and note a failure of the current job; False: the sweep ends, by a signal or as the job has not begun."""
        own: Any = HydraConfig.get()
        is_stop = isinstance(ended, SystemExit) and not (isinstance(ended.code, str) or ended.code == 1)
        has_begun = self._begun[-1:] == [own.overrides.task]
        if is_stop or not has_begun or not own.launcher["_target_"].endswith(".BasicLauncher"):
            return False
        if isinstance(ended, SystemExit):
            print(ended.code, file=sys.stderr)
        else:
            traceback.print_exception(ended)
        self._failed[own.job.num] = own.overrides.task
        return True

    def end(self) -> None:
        """Raise `ConfigError` with the jobs that have failed, if any, each by the overrides that not all jobs have."""
        if self._failed:
            in_all = set(self._begun[0]).intersection(*self._begun)
            names = (
                f"job {number} ({shlex.join(word for word in words if word not in in_all)})"
                for number, words in self._failed.items()
            )
            raise ConfigError(f"{len(self._failed)} of {len(self._begun)} jobs have failed: {'; '.join(names)}")

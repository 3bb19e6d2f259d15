"""`-m`: the jobs of a sweep in this process, all checked before the first, of which none ends the others."""

import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import open_dict

from apo_lightning.common.console import say
from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import composed, expand_glob
from apo_lightning.run.commands import Command
from apo_lightning.run.user_message import user_message


class Sweep:
    """The jobs of one command; a single run has none.

    Jobs that another launcher starts elsewhere, such as SLURM's, check themselves there.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.num_begun = 0
        self.failed: list[str] = []
        self._in_all = frozenset[str]()
        """Overrides that all jobs have."""

    def begin_job(self, overrides: Sequence[str]) -> None:
        """Say which job begins; the first raises `ConfigError` if any cannot work. `overrides` are the sweep's."""
        own: Any = HydraConfig.get()
        if self.num_begun == 0 and _is_local(own) and own.sweeper["_target_"].endswith(BasicSweeper.__name__):
            self._check(overrides)
        self.num_begun += 1
        say(f"job {own.job.num} of the sweep: {shlex.join(own.overrides.task)}")

    def go_on_after(self, ended: SystemExit | Exception) -> bool:
        """Say and note a failure of the current job; False: the sweep ends with it, as after a signal."""
        own: Any = HydraConfig.get()
        is_stop = isinstance(ended, SystemExit) and not (isinstance(ended.code, str) or ended.code == 1)
        if is_stop or not _is_local(own) or self.num_begun == 0:
            return False
        if isinstance(ended, SystemExit):
            print(ended.code, file=sys.stderr)
        else:
            traceback.print_exception(ended)
        self.failed.append(self._named(own.job.num, own.overrides.task))
        return True

    def end(self) -> None:
        """Raise `ConfigError` with the jobs that have failed, if any."""
        if self.failed:
            raise ConfigError(f"{len(self.failed)} of {self.num_begun} jobs have failed: {'; '.join(self.failed)}")

    def _check(self, overrides: Sequence[str]) -> None:
        """Compose every job and check its settings; nothing is loaded."""
        own: Any = HydraConfig.get()
        config = HydraConfig.instance().cfg
        words = get_args_parser().parse_args([expand_glob(word) for word in overrides]).overrides
        parsed = OverridesParser.create().parse_overrides(words)
        refused: dict[str, list[str]] = {}
        (jobs,) = BasicSweeper.split_arguments(parsed, None)
        self._in_all = frozenset(jobs[0]).intersection(*jobs)
        for number, words in enumerate(jobs):
            try:
                cfg = composed(str(self.command.config), words, with_hydra=True)
                with open_dict(cfg):
                    cfg.hydra.mode, cfg.hydra.job.num, cfg.hydra.job.id = own.mode, number, str(number)
                    cfg.hydra.runtime.output_dir = str(Path(own.sweep.dir).resolve() / str(number))
                    HydraConfig.instance().set_config(cfg)
                    del cfg["hydra"]
                self.command.check(cfg)
            except Exception as error:
                if (line := user_message(error)) is None:
                    raise
                refused.setdefault(line, []).append(self._named(number, words))
            finally:
                HydraConfig.instance().cfg = config
        if refused:
            reasons = "; ".join(f"{', '.join(names)}: {line}" for line, names in refused.items())
            num_refused = sum(map(len, refused.values()))
            raise ConfigError(f"no job was started, since {num_refused} of {len(jobs)} cannot work: {reasons}")

    def _named(self, number: int, words: Sequence[str]) -> str:
        return f"job {number} ({shlex.join(word for word in words if word not in self._in_all)})"


def _is_local(own: Any) -> bool:
    return own.launcher["_target_"].endswith(".BasicLauncher")

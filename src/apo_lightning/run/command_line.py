"""`apo <command> <overrides>`: compose the configuration, run the command, and end with one line if it cannot work.

The module that does the work is imported last: `--help` and wrong overrides must not wait for torch.
"""

import difflib
import logging
import os
import re
import shlex
import shutil
import signal
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from apo_lightning.common.console import say
from apo_lightning.common.formatting import flatten
from apo_lightning.errors import ConfigError, Preempted
from apo_lightning.run.choices import CONFIG_DIR, composed, config_folders, expand_glob, options_of, refuse_null
from apo_lightning.run.commands import Command, commands, find_command
from apo_lightning.run.help_page import FLAGS, command_page, index_page
from apo_lightning.run.launching import register_resolvers, use_expandable_segments, use_short_spins
from apo_lightning.run.user_message import user_message
from apo_lightning.run.value_types import check_numbers

# On import: a process started by submitit reads its configuration without calling `main`.
register_resolvers()


def main(words: Sequence[str] | None = None) -> None:
    """Run one command; `words` are the command and its overrides, or None for those of the command line."""
    words = sys.argv[1:] if words is None else words
    # As `python -m` does: a user's rewards, losses and callbacks are found in the working directory.
    if not sys.flags.safe_path and "" not in sys.path and (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)
    try:
        if not words or words[0] in FLAGS:
            print(index_page(commands()))
            return
        name, *arguments = words
        command = find_command(name)
        if any(argument in FLAGS for argument in arguments):
            print(command_page(command))
            return
        if command.config is None:
            sys.exit(command.load()(arguments))
        overrides = command.overrides(arguments)
        try:
            _run(command, overrides)
        except HydraException as error:
            if (line := misspelt(error, command.config, overrides)) is None:
                raise
            sys.exit(f"error: {line}")
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(128 + signal.SIGINT)
    except InstantiationException:
        raise
    except MarkedYAMLError as error:
        mark = error.problem_mark
        sys.exit(f"error: {mark and f'{mark.name}:{mark.line + 1}: '}{error.problem}")
    except (ConfigError, HydraException, OmegaConfBaseException) as error:
        sys.exit(f"error: {one_line(error)}")


def _run(command: Command, arguments: Sequence[str]) -> None:
    """Compose the configuration of the command with Hydra, once or for every job of a sweep, and run the command."""
    primary = command.config
    assert primary is not None
    # Without it Hydra shortens tracebacks and hides where a bug is.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    use_expandable_segments()
    use_short_spins()
    typed = sys.argv
    prefix = typed[: len(typed) - len(arguments)]

    def job(cfg: DictConfig) -> None:
        # Lightning starts ranks with this command line, which must contain the command.
        sys.argv = [*prefix, *sys.argv[1:]]
        try:
            check_numbers(cfg, primary)
            with _job_of_a_sweep(len(prefix)):
                command.load()(cfg)
        except Preempted as stopped:
            say(str(stopped))
            say(continuation(command.name))
            from lightning.pytorch.utilities.rank_zero import rank_zero_only

            # Another status than 0 on the other ranks would make the launcher report a failure.
            sys.exit(Preempted.STATUS if getattr(rank_zero_only, "rank", 0) == 0 else 0)
        except Exception as error:
            message = user_message(error)
            if message is None:
                raise
            _forget_refused_run()
            sys.exit(f"error: {message}")
        finally:
            sys.argv = [prefix[0], *sys.argv[len(prefix) :]]

    for argument in arguments:
        refuse_null(argument)
    sys.argv = [prefix[0], *map(expand_glob, arguments)]
    try:
        hydra.main(config_path=str(CONFIG_DIR), config_name=primary, version_base="1.3")(job)()
    finally:
        sys.argv = typed


def _forget_refused_run() -> None:
    """Remove the folder of this job if Hydra's copy of its configuration is all it has: it is no run."""
    hydra: Any = HydraConfig.get()
    folder = Path(hydra.runtime.output_dir)
    if hydra.output_subdir is None or [path.name for path in folder.iterdir()] != [hydra.output_subdir]:
        return
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.FileHandler):  # a library's last warning would fail to open the job's log
            logging.root.removeHandler(handler)
    shutil.rmtree(folder, ignore_errors=True)


def _job_of_a_sweep(prefix_length: int) -> AbstractContextManager[None]:
    """`each_job_a_run` in a sweep, else nothing: it imports Lightning, which no report needs."""
    hydra: Any = HydraConfig.get()
    if hydra.mode is not RunMode.MULTIRUN:
        return nullcontext()
    say(f"job {hydra.job.num} of the sweep: {shlex.join(hydra.overrides.task)}")
    from apo_lightning.run.sweeping import each_job_a_run

    return each_job_a_run(prefix_length)


def continuation(command: str) -> str:
    """The command that continues this run, or this job of a sweep."""
    hydra: Any = HydraConfig.get()
    own = [override for override in hydra.overrides.task if not override.startswith("resume=")]
    words = ["apo", command, *own, f"hydra.run.dir={hydra.runtime.output_dir}", "resume=auto"]
    return f"continue with: {shlex.join(words)}"


def misspelt(error: HydraException, config: str, overrides: Sequence[str]) -> str | None:
    """One line with the nearest key, for a key that does not exist; None: it is another error, or no key is near."""
    if (found := re.match("Could not override '([^']+)'", str(error))) is None:
        return None
    others = [word for word in overrides if "=" in word and word.partition("=")[0] != found[1]]
    try:
        known = composed(config, [word.split(",")[0] for word in others])
    except (HydraException, OmegaConfBaseException):
        return None
    keys = flatten(cast("dict[str, Any]", OmegaConf.to_container(known)))
    groups = (group.name for folder in config_folders() for group in folder.glob("*/"))
    near = difflib.get_close_matches(found[1], [*keys, *groups], 1)
    return f"there is no setting {found[1]}: the nearest is {near[0]}" if near else None


def one_line(error: BaseException) -> str:
    """Hydra's message on a wrong override, in one line without the search path."""
    if isinstance(error, MissingConfigException) and (name := error.missing_cfg_file):
        group, _, option = name.partition("/")
        if options := options_of(group):
            missing = f"there is no configs/{name}.yaml here ({Path.cwd()}) or in the framework"
            near = difflib.get_close_matches(option, options) or [
                each for each in options if difflib.get_close_matches(option, [each.rpartition("/")[2]])
            ]
            choice = f"{group}={f' or {group}='.join(near)}" if near else f"one of {', '.join(options)}"
            elsewhere = "name the folder of its configs with -cd FOLDER, and that of its code in PYTHONPATH"
            return f"{missing}: choose {choice}, or, if it lies elsewhere, {elsewhere}"
    parts = [str(error).split("Config search path")[0]]
    if error.__cause__ is not None:
        parts.append(str(error.__cause__).split("full_key")[0])
    return " ".join(" ".join(parts).split())

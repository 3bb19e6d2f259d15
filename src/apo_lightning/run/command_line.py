"""`apo <command> <overrides>`: compose the configuration, run the command, and end with one line if it cannot work.

The module that does the work is imported last: `--help` and wrong overrides must not wait for torch.
"""

import contextlib
import logging
import os
import re
import shlex
import signal
import sys
import textwrap
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.types import RunMode
from omegaconf import DictConfig

from apo_lightning.common.console import say
from apo_lightning.common.files import naming
from apo_lightning.common.formatting import printable
from apo_lightning.common.launch import is_first_process, launch
from apo_lightning.errors import ConfigError, NonfiniteError, Preempted, VerifierError
from apo_lightning.run.choices import (
    CONFIG_DIR,
    config_folders,
    expand_glob,
    options_of,
    quote_paths,
    refuse_mistyped,
    refuse_unread,
)
from apo_lightning.run.commands import Command, commands, find_command
from apo_lightning.run.launching import end_with_peers, register_resolvers, set_defaults_of_torch
from apo_lightning.run.sweep import Sweep
from apo_lightning.run.user_message import is_ours, misspelt, user_message

HELP = ("-h", "--help")

# On import: a process started by submitit reads its configuration without calling `main`.
register_resolvers()


def main(words: Sequence[str] | None = None) -> None:
    """Run one command; `words` are the command and its overrides, or None for those of the command line."""
    words = sys.argv[1:] if words is None else words
    with _errors_in_one_line():
        # As `python -m` does: a user's rewards, losses and callbacks are found in the working directory.
        with naming(Path("the working directory")):
            here = str(Path.cwd())
        if not sys.flags.safe_path and not {"", here} & {*sys.path}:
            sys.path.insert(0, here)
        if not words or words[0] in HELP:
            say(index_page())
            return
        name, *arguments = words
        command = find_command(name)
        if command.config is None:
            sys.exit(command.load()(arguments))
        if set(HELP) & set(arguments):
            say(help_page(command))
            return
        _run(command, command.overrides(arguments))


@contextlib.contextmanager
def _errors_in_one_line() -> Iterator[None]:
    """End with one line and status 1 for an error that the user can fix; other errors keep their traceback."""
    try:
        yield
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(128 + signal.SIGINT)
    except Exception as error:
        if (line := user_message(error)) is None:
            raise
        # Of what all ranks raise alike, one line is enough.
        is_said = isinstance(error, NonfiniteError | VerifierError) and not is_first_process()
        sys.exit(1 if is_said else printable(f"error: {line}"))


def index_page() -> str:
    """One line for every command."""
    lines = [f"  {name:<10} {command.summary}" for name, command in commands().items()]
    title = "apo <command> [key=value …]: on-policy RL with verifiable rewards"
    return "\n".join([title, "", *lines, "", "apo <command> --help shows the options of a command."])


def help_page(command: Command) -> str:
    """The summary, the options of each axis, and the primary configuration, whose comments explain the settings."""
    assert command.config is not None
    files = (folder / f"{command.config}.yaml" for folder in config_folders())
    text = next(path for path in files if path.is_file()).read_text()
    entries = [entry for entry in yaml.safe_load(text)["defaults"] if isinstance(entry, dict)]
    axes = [axis for entry in entries for axis in entry if axis.isidentifier()]
    lines = (f"{axis}= {' '.join(options_of(axis))}" for axis in axes)
    wrapped = [
        textwrap.fill(line, 80, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
        for line in lines
    ]
    does = f" [{' | '.join(command.actions)}]" if command.actions else ""
    ends = f"All settings, with those of the chosen options: apo {command.name} --cfg job"
    return "\n".join([f"apo {command.name}{does} [key=value …]: {command.summary}", "", *wrapped, "", text, ends])


def _run(command: Command, overrides: Sequence[str]) -> None:
    """Compose the configuration of the command with Hydra, once or for every job of a sweep, and run the command."""
    # Without it Hydra shortens tracebacks and hides where a bug is.
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    logging.getLogger("hydra.utils").disabled = True  # it says on three lines what is then raised
    set_defaults_of_torch()
    end_with_peers()
    if launch().size > 1 and not command.takes_ranks:
        raise ConfigError(f"apo {command.name} is one process, and a launcher has started {launch().size}: start one")
    overrides = [quote_paths(override) for override in overrides]
    for override in overrides:
        refuse_mistyped(override)
    typed = sys.argv
    prefix = typed[: len(typed) - len(overrides)]

    sweep = Sweep(command)

    def job(cfg: DictConfig) -> None:
        # Lightning starts ranks with this command line, which must contain the command.
        sys.argv = [*prefix, *sys.argv[1:]]
        is_swept = HydraConfig.get().mode is RunMode.MULTIRUN
        try:
            with _errors_in_one_line(), _exits_are_errors():
                if is_swept:
                    sweep.begin_job(cfg)
                refuse_unread(cfg, str(command.config))
                if command.uses_devices:
                    from apo_lightning.run.devices import check_devices  # with torch alone: a refusal comes at once

                    check_devices(cfg.trainer)
                command.load()(cfg)
        except Preempted as stopped:
            say(str(stopped))
            say(continuation(command.name))
            from lightning.pytorch.utilities.rank_zero import rank_zero_only

            # Another status than 0 on the other ranks would make the launcher report a failure.
            sys.exit(Preempted.STATUS if getattr(rank_zero_only, "rank", 0) == 0 else 0)
        except (SystemExit, Exception) as ended:
            if not (is_swept and sweep.go_on_after(ended)):
                raise
        finally:
            _remove_empty(Path(HydraConfig.get().runtime.output_dir))
            sys.argv = [prefix[0], *sys.argv[len(prefix) :]]

    sys.argv = [prefix[0], *map(expand_glob, overrides)]
    try:
        hydra.main(config_path=str(CONFIG_DIR), config_name=command.config, version_base="1.3")(job)()
        sweep.end()
    except Exception as error:
        if (line := misspelt(error, str(command.config), overrides)) is None:
            raise
        sys.exit(printable(f"error: {line}"))
    finally:
        sys.argv = typed


@contextlib.contextmanager
def _exits_are_errors() -> Iterator[None]:
    """Turn `sys.exit` of a user's reward, loss or callback into an error: status 0 would say that the run is done."""
    try:
        yield
    except SystemExit as ended:
        first: BaseException = ended
        while first.__context__ is not None:
            first = first.__context__
        place = traceback.extract_tb(first.__traceback__)[-1]
        if isinstance(first, KeyboardInterrupt):  # Lightning's answer to it
            raise first from None
        if is_ours(Path(place.filename)):
            raise
        raise ConfigError(
            f"{place.filename}:{place.lineno} called sys.exit({ended.code!r}) before the run had ended: raise an "
            "exception there, or return"
        ) from ended


def _remove_empty(folder: Path) -> None:
    """Remove a job's folder, and those around it up to the working directory, as far as they are empty."""
    here = Path.cwd()
    with contextlib.suppress(OSError):  # the first that holds anything
        for path in (folder, *folder.parents):
            if path != here and (path == folder or path.is_relative_to(here)):
                path.rmdir()


def continuation(command: str) -> str:
    """The command that continues this run, or this job of a sweep."""
    hydra_cfg: Any = HydraConfig.get()
    own = [override for override in hydra_cfg.overrides.task if not override.startswith("resume=")]
    folder = hydra_cfg.runtime.output_dir
    if not re.fullmatch(r"[\w/. -]*", folder, re.ASCII):  # Hydra's grammar reads the rest in quotes alone
        folder = QuotedString(folder, Quote.single).with_quotes()
    return f"continue with: {shlex.join(['apo', command, *own, f'hydra.run.dir={folder}', 'resume=auto'])}"

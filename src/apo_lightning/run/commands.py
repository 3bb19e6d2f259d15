"""The commands of `apo`. Another package adds its own with an entry point of the group `apo_lightning.commands`."""

import difflib
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from apo_lightning.errors import ConfigError

ENTRY_POINTS = "apo_lightning.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command: its configuration, the function that does the work, and what `--help` says of it."""

    name: str
    summary: str
    """One line."""
    work: str
    """`module:function`, imported when the command runs. It gets the composed configuration; without a `config` the
    command line's words."""
    config: str | None
    """The primary configuration, such as `train`; None: the command reads its own arguments."""
    details: str = ""
    """A paragraph on what the command does and leaves behind."""
    axes: tuple[str, ...] = ()
    """Groups of options that the command reads."""
    settings: tuple[str, ...] = ()
    """The keys that matter most; their defaults and comments are read from the configuration."""
    examples: tuple[str, ...] = ()
    """Command lines."""

    def load(self) -> Callable[[Any], Any]:
        """Import the function that does the work."""
        module, _, function = self.work.partition(":")
        return getattr(importlib.import_module(module), function)


TRAIN = Command(
    name="train",
    summary="Train a policy.",
    work="apo_lightning.run.jobs:train_or_preflight",
    config="train",
)
EVALUATE = Command(
    name="evaluate",
    summary="Measure a policy on benchmarks.",
    work="apo_lightning.run.jobs:evaluate_policy",
    config="evaluate",
)
EXPORT = Command(
    name="export",
    summary="Write a checkpoint as a Hugging Face folder.",
    work="apo_lightning.run.exporting:export",
    config="export",
)
BUILT_IN = (TRAIN, EVALUATE, EXPORT)


@cache
def commands() -> Mapping[str, Command]:
    """Name → command: the framework's, then those of installed packages.

    Raises:
        ConfigError: two commands have the same name.
    """
    found = {command.name: command for command in BUILT_IN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        if point.name in found:
            raise ConfigError(f"two packages bring a command '{point.name}'; the second is {point.value}")
        found[point.name] = point.load()
    return found


def find_command(name: str) -> Command:
    """The command of this name.

    Raises:
        ConfigError: there is none; the line names the nearest.
    """
    if name in commands():
        return commands()[name]
    near = difflib.get_close_matches(name, commands())
    raise ConfigError(
        f"there is no command '{name}'; {f'near it: {near[0]}' if near else 'there are: ' + ', '.join(commands())}"
    )

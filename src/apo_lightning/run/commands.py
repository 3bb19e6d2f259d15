"""The commands of `apo`. Other packages add theirs with entry points of the group `apo_lightning.commands`."""

import difflib
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from apo_lightning.errors import ConfigError

ENTRY_POINTS = "apo_lightning.commands"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command."""

    name: str
    summary: str
    """One line of at most 67 characters."""
    work: str
    """`module:function`, imported when the command runs. Its argument is the composed configuration, or the list of
    typed arguments if `config` is None."""
    config: str | None
    """The primary configuration, such as `train`; None: the command parses its arguments itself, `--help` included."""
    actions: tuple[str, ...] = ()
    """Words that may follow the name: `apo paper plan` sets the key `action` to `plan`."""

    takes_ranks: bool = False
    """Whether the processes that a launcher starts share the work; False: the command is one process."""

    uses_devices: bool = False
    """Whether it runs on the devices of `trainer`, and is refused without them; False: it may plan for them."""

    def load(self) -> Callable[[Any], Any]:
        """Import the function that does the work."""
        module, _, function = self.work.partition(":")
        return getattr(importlib.import_module(module), function)

    def overrides(self, arguments: Sequence[str]) -> list[str]:
        """The arguments as overrides, a first word of `actions` as `action=…`; raises `ConfigError` on another word."""
        first, *rest = arguments or ("",)
        if first in self.actions:
            return [f"action={first}", *rest]
        if self.actions and first and "=" not in first and not first.startswith(("-", "~")):
            raise ConfigError(f"apo {self.name} {first}: choose one of {', '.join(self.actions)}")
        return [*arguments]


BUILT_IN = (
    Command(
        name="train",
        summary="Train a policy.",
        work="apo_lightning.run.training:main",
        config="train",
        takes_ranks=True,
        uses_devices=True,
    ),
    Command(
        name="evaluate",
        summary="Measure a policy on benchmarks.",
        work="apo_lightning.run.evaluating:main",
        config="evaluate",
        takes_ranks=True,
        uses_devices=True,
    ),
    Command(
        name="export",
        summary="Write a checkpoint as a Hugging Face folder.",
        work="apo_lightning.run.exporting:export",
        config="export",
    ),
    Command(
        name="verify",
        summary="Make a result again, and compare it with what it says.",
        work="apo_lightning.run.verifying:main",
        config="verify",
        uses_devices=True,
    ),
    Command(
        name="publish",
        summary="Write a policy with its model card and evidence.",
        work="apo_lightning.run.publishing:publish",
        config="publish",
    ),
)


@cache
def commands() -> Mapping[str, Command]:
    """Name → command: the framework's, then those of installed packages; raises `ConfigError` if a name is taken."""
    found = {command.name: command for command in BUILT_IN}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda point: point.name):
        if point.name in found:
            raise ConfigError(f"two packages bring a command '{point.name}'; the second is {point.value}")
        found[point.name] = point.load()
    return found


def find_command(name: str) -> Command:
    """Find a command by its name; raises `ConfigError`, which names the nearest, if there is none."""
    if name in commands():
        return commands()[name]
    near = difflib.get_close_matches(name, commands())
    raise ConfigError(
        f"there is no command '{name}'; {f'the nearest is {near[0]}' if near else 'there are ' + ', '.join(commands())}"
    )

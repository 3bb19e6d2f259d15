"""The pages of `apo --help` and `apo <command> --help`: plain text, on 80 columns, without an import of torch."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from apo_lightning.run.choices import config_folders, options_of
from apo_lightning.run.commands import Command

WIDTH = 80
FLAGS = ("-h", "--help")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a configuration, as its YAML file states it."""

    default: str
    """The value as written."""
    comment: str
    """The comment behind the value, with the lines that continue it; empty if there is none."""


def index_page(commands: Mapping[str, Command]) -> str:
    """One line for every command."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    title = "apo <command> [key=value …]: on-policy RL with verifiable rewards"
    return "\n".join([title, "", *lines, "", "apo <command> --help shows the options of a command."])


def command_page(command: Command) -> str:
    """What a command does, its axes with their options, its most important settings, and examples."""
    takes = " [key=value …]" if command.config is not None else ""
    parts = [[f"apo {command.name}{takes}", command.summary], textwrap.wrap(command.details, WIDTH)]
    if command.config is not None and command.axes:
        chosen = _chosen_options(command.config)
        axes = (line for axis, sets in command.axes.items() for line in _axis(axis, sets, chosen.get(axis, ())))
        parts.append(["Axes, the default in brackets", *axes])
    if command.config is not None and command.settings:
        settings = {key: find_setting(command.config, key) for key in command.settings}
        parts.append(["Settings, with their defaults", *_columns(settings)])
    if command.examples:
        parts.append(["Examples", *(f"  {example}" for example in command.examples)])
    if command.config is not None:
        own = ["Your own options: ./configs/<axis>/<name>.yaml, or in a folder given with -cd"]
        parts.append([f"All settings: apo {command.name} --cfg job", *(own if command.axes else [])])
    return "\n\n".join("\n".join(lines) for lines in parts)


def find_setting(config: str, key: str) -> Setting:
    """Look a key up in a primary configuration, or in the default options that it names.

    Args:
        config: the primary configuration, such as `train`.
        key: with dots, such as `optimizer.lr`.

    Raises:
        KeyError: no file states it.

    Example:
        >>> find_setting("train", "trainer.val_check_interval")
        Setting(default='10', comment='rollouts between two validation passes')
    """
    found = _find(_file(config), key.split("."))
    if found is None:
        raise KeyError(f"{config}.yaml and its default options have no {key}")
    return found


def _find(path: Path, keys: list[str]) -> Setting | None:
    """The key in a file, else in what its defaults list includes."""
    text = path.read_text()
    node = yaml.compose(text, Loader=yaml.CSafeLoader)
    for key in keys:
        children = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for name, value in children if name.value == key), None)
    if node is not None:
        default = text[node.start_mark.index : node.end_mark.index]
        default = default.replace(", ", ",")  # as it can be typed
        return Setting(default, _comment(text.splitlines(), node.end_mark.line))
    for group, package, option in _defaults(path):
        below = [] if package in ("_here_", "_global_") else package.split(".")
        if keys[: len(below)] == below and (included := _included(path, group, option)) is not None:
            found = _find(included, keys[len(below) :])
            if found is not None:
                return found
    return None


def _comment(lines: list[str], number: int) -> str:
    """The comment on a line, with comment lines that continue it below in the same column."""
    _, mark, comment = lines[number].partition(" #")
    if not mark:
        return ""
    column = lines[number].index(" #") + 1
    parts = [comment.strip()]
    for line in lines[number + 1 :]:
        if not line.strip().startswith("#") or line.index("#") != column:
            break
        parts.append(line.strip("# "))
    return " ".join(parts)


def _defaults(path: Path) -> Iterator[tuple[str, str, str]]:
    """Group, package and option of each entry of a file's defaults list; entries that depend on others are left out."""
    entries: list[Any] = yaml.load(path.read_text(), Loader=yaml.CSafeLoader).get("defaults", [])
    for entry in entries:
        key, option = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if not isinstance(entry, dict):
            option, _, package = str(option).partition("@")
            group, package = "", package or "_here_"
        else:
            group, _, package = key.removeprefix("optional ").removeprefix("override ").partition("@")
            package = package or group.strip("/").replace("/", ".")
        option = option[0] if isinstance(option, list) else option
        if option not in (None, "_self_") and "${" not in str(option) and not group.startswith("hydra"):
            yield group, package, str(option)


def _included(path: Path, group: str, option: str) -> Path | None:
    """The file of an option; a relative group lies below the file that names it."""
    folders = config_folders()
    root = next((folder for folder in folders if path.is_relative_to(folder)), folders[0])
    base = "" if group.startswith("/") else path.parent.relative_to(root).as_posix()
    name = "/".join(part for part in (base.strip("."), group.strip("/"), option) if part)
    return next((folder / f"{name}.yaml" for folder in folders if (folder / f"{name}.yaml").is_file()), None)


def _file(config: str) -> Path:
    return next(path for folder in config_folders() if (path := folder / f"{config}.yaml").is_file())


def _chosen_options(config: str) -> dict[str, tuple[str, ...]]:
    """Group → the options that a primary configuration chooses by default."""
    entries: list[Any] = yaml.load(_file(config).read_text(), Loader=yaml.CSafeLoader)["defaults"]
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {group: tuple(option if isinstance(option, list) else [option]) for group, option in pairs if option}


def _axis(axis: str, sets: str, chosen: Iterable[str]) -> Iterator[str]:
    """What an axis sets, and its options: plain ones, those of each folder, and parts that are joined to a set."""
    yield f"  {axis + '=':<12} {sets}"
    options = options_of(axis)
    parts = [option for option in options if _is_part(axis, option)]
    folders = sorted({option.rpartition("/")[0] for option in options})
    for folder in folders:
        names = [name for name in options if name.rpartition("/")[0] == folder and name not in parts]
        marked = [f"[{name}]" if name in chosen else name.rpartition("/")[2] for name in names]
        yield from _wrapped(" ".join([f"{folder}/:"] * bool(folder) + marked))
    if parts:
        yield from _wrapped(f"joined by {axis}=[{next(iter(chosen), '…')},…]: {' '.join(parts)}")


def _is_part(group: str, option: str) -> bool:
    """Whether an option holds one node of its own name, as a single callback does: it is joined to a set of others."""
    path = next(path for folder in config_folders() if (path := folder / group / f"{option}.yaml").is_file())
    content = yaml.load(path.read_text(), Loader=yaml.CSafeLoader)
    return group == "callbacks" and list(content) == [option]


def _wrapped(text: str) -> list[str]:
    indent = " " * 15
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _columns(settings: Mapping[str, Setting]) -> Iterator[str]:
    """`key=default` and the comment, which continues below itself."""
    heads = {f"{key}={setting.default}": setting.comment for key, setting in settings.items()}
    column = max(map(len, heads)) + 4
    for head, comment in heads.items():
        lines = textwrap.wrap(comment, WIDTH - column) or [""]
        yield f"  {head:<{column - 4}}  {lines[0]}".rstrip()
        yield from (" " * column + line for line in lines[1:])

"""The pages of `apo --help` and `apo <command> --help`: plain text, on 80 columns, without an import of torch."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from apo_lightning.run.choices import config_folders, default_options, options_of
from apo_lightning.run.commands import Command

WIDTH = 80
FLAGS = ("-h", "--help")


@dataclass(frozen=True, slots=True)
class Setting:
    """One key of a configuration, as its YAML file states it."""

    default: str
    comment: str
    """What stands behind the value, with the lines that continue it; may be empty."""


def index_page(commands: Mapping[str, Command]) -> str:
    """One line for every command."""
    width = max(map(len, commands))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in commands.items()]
    title = "apo <command> [key=value …]: on-policy RL with verifiable rewards"
    return "\n".join([title, "", *lines, "", "apo <command> --help shows the options of a command."])


def command_page(command: Command) -> str:
    """What a command does, its axes with their options, its most important settings, and examples."""
    takes = " [key=value …]" if command.config is not None else ""
    does = f" [{' | '.join(command.actions)}]" if command.actions else ""
    parts = [[f"apo {command.name}{does}{takes}", command.summary], textwrap.wrap(command.details, WIDTH)]
    if command.actions:
        width = max(map(len, command.actions))
        parts.append([f"  {name:<{width}}  {what}" for name, what in command.actions.items()])
    if command.config is not None and command.axes:
        chosen = [
            str(option.config_path) for option in default_options(command.config) if option.parent == command.config
        ]
        axes = (line for axis, sets in command.axes.items() for line in _axis(axis, sets, chosen))
        parts.append(["Axes, the default in brackets", *axes])
    if command.config is not None and command.settings:
        settings = find_settings(command.config, command.settings)
        parts.append(["Settings, with their defaults", *_columns(settings)])
    if command.examples:
        parts.append(["Examples", *(f"  {example}" for example in command.examples)])
    if command.config is not None:
        own = ["Your own options: ./configs/<axis>/<name>.yaml, or in a folder given with -cd"]
        parts.append([f"All settings: apo {command.name} --cfg job", *(own if command.axes else [])])
    return "\n\n".join("\n".join(lines) for lines in parts)


def find_settings(config: str, keys: Sequence[str]) -> dict[str, Setting]:
    """Look dotted keys up in a primary configuration and the default options that it names.

    Example:
        >>> find_settings("train", ["trainer.val_check_interval"])
        {'trainer.val_check_interval': Setting(default='10', comment='rollouts between two validation passes')}
    """
    found = {}
    for option in default_options(config):
        text = _file(str(option.config_path)).read_text()
        root = yaml.compose(text, Loader=yaml.CSafeLoader)
        for key in keys:
            node = _find(root, f"{option.package}." if option.package else "", key)
            if node is not None:
                default = text[node.start_mark.index : node.end_mark.index]
                comment = _comment(text.splitlines(), node.end_mark.line)
                found[key] = Setting(default.replace(", ", ","), comment)  # without blanks, as it can be typed
    if missing := [key for key in keys if key not in found]:
        raise KeyError(f"{config}.yaml and its default options have no {missing[0]}")
    return {key: found[key] for key in keys}


def _find(node: yaml.Node | None, package: str, key: str) -> yaml.Node | None:
    """The node of a key in a file whose keys lie below a package; None if the file does not state it."""
    if not key.startswith(package):
        return None
    for name in key.removeprefix(package).split("."):
        children = node.value if isinstance(node, yaml.MappingNode) else ()
        node = next((value for child, value in children if child.value == name), None)
    return node


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


def _file(name: str) -> Path:
    return next(path for folder in config_folders() if (path := folder / f"{name}.yaml").is_file())


def _axis(axis: str, sets: str, chosen: Sequence[str]) -> Iterator[str]:
    """What an axis sets, and its options: plain ones, those of each folder, and parts that are joined to a set."""
    yield f"  {axis + '=':<12} {sets}"
    chosen = [path.removeprefix(f"{axis}/") for path in chosen if path.startswith(f"{axis}/")]
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
    return group == "callbacks" and list(yaml.safe_load(_file(f"{group}/{option}").read_text())) == [option]


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

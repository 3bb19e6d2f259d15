"""The page of all options, from the YAML files, their comments and the docstrings of the classes that they name."""

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import yaml
from hydra.utils import get_object
from sphinx.application import Sphinx
from yaml.nodes import CollectionNode, MappingNode, Node

from apo_lightning.run.choices import config_folders

DOCNAME = "reference/options"
HYDRAS_OWN = {"defaults", "hydra", "_partial_", "_convert_", "_recursive_"}


@dataclass(frozen=True, kw_only=True)
class Option:
    """One key of a file."""

    key: str
    """Where it stands in the file: `loss.clip_eps`."""
    default: str
    """The value as it is written; empty for a mapping, whose keys follow."""
    meaning: str
    """The comment at the key, or what the docstring of the class says of the parameter."""


@dataclass(frozen=True)
class ConfigFile:
    """A YAML file of the configuration."""

    text: str

    @property
    def summary(self) -> str:
        """The comment at the top, without `@package` lines."""
        lines = []
        for line in self.text.splitlines():
            if not line.startswith("#"):
                break
            lines.append(line.removeprefix("#").removeprefix(" "))
        return "\n".join(line for line in lines if not line.startswith("@package"))

    @property
    def built_on(self) -> list[str]:
        """The entries of `defaults`."""
        entries = (yaml.safe_load(self.text) or {}).get("defaults", [])
        written = (entry if isinstance(entry, str) else _written_entry(*entry.items()) for entry in entries)
        return [entry for entry in written if entry not in ("_self_",) and not entry.startswith("override hydra")]

    def options(self) -> list[Option]:
        """Every key but Hydra's own, in the order of the file; mappings only where the file says what they are."""
        root = yaml.compose(self.text)
        return list(self._options(root, "")) if isinstance(root, MappingNode) else []

    def _options(self, node: MappingNode, prefix: str) -> Iterator[Option]:
        target = {key.value: value for key, value in node.value}.get("_target_")
        documented = {} if target is None else parameters_of(target.value) | {"_target_": "the class"}
        for key, value in node.value:
            if key.value in HYDRAS_OWN:
                continue
            is_parent = isinstance(value, MappingNode) and bool(value.value)
            meaning = _joined(self._comment(key, value), documented.get(key.value, ""))
            if meaning or not is_parent:
                yield Option(key=prefix + key.value, default="" if is_parent else self._written(value), meaning=meaning)
            if is_parent:
                yield from self._options(value, f"{prefix}{key.value}.")

    def _written(self, node: Node) -> str:
        text = self.text[node.start_mark.index : node.end_mark.index]
        return " ".join(re.sub(r"\s+#.*$", "", text, flags=re.MULTILINE).split())

    def _comment(self, key: Node, value: Node) -> str:
        """What stands behind the value, or behind the key of a block, and on the lines below in the same column."""
        is_block = isinstance(value, CollectionNode) and not value.flow_style
        end = key.end_mark if is_block else value.end_mark
        first, *others = self.text.splitlines()[end.line :] or [""]
        found = re.match(r":?\s*(# ?(.*))$", first[end.column :])
        if found is None:
            return ""
        column = end.column + found.start(1)
        below = takewhile(lambda line: line[:column].isspace() and line[column : column + 1] == "#", others)
        return " ".join([found[2], *(line.strip(" #") for line in below)])


def _written_entry(entry: tuple[str, object]) -> str:
    group, name = entry
    return f"{group}={'null' if name is None else name}"


def _joined(comment: str, docs: str) -> str:
    """The comment; one that only names the paper's symbol, such as `lambda`, is followed by the docstring."""
    return f"{comment}: {docs}" if docs and comment.isalpha() else comment or docs


def parameters_of(target: str) -> dict[str, str]:
    """Parameter → what the docstrings of a class of ours and of its bases say of it.

    >>> parameters_of("apo_lightning.losses.APO")["push_coef"]
    'λ > 0, on the ratio of the error itself.'
    """
    if not target.startswith(("apo_lightning.", "apo_methods.", "apo_report.", "apo_lab.", "apo_plan.")):
        return {}
    kind = get_object(target)
    found: dict[str, str] = {}
    for described in reversed(inspect.getmro(kind)) if isinstance(kind, type) else [kind]:
        for names, text in re.findall(
            r"^    ([a-z_][\w, ]*): (.+(?:\n {5,}.+)*)",
            _parameters_section(inspect.getdoc(described) or ""),
            re.MULTILINE,
        ):
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def _parameters_section(docstring: str) -> str:
    sections = re.findall(r"^(?:Args|Attributes):\n((?:(?: .*)?\n?)*)", docstring, re.MULTILINE)
    return "\n".join(sections)


def sections() -> Iterator[str]:
    """The sections of the page: the commands' own files, then each group."""
    files: dict[str, Path] = {}
    for folder in reversed(config_folders()):
        files |= {path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))}
    meanings = {option.key: option.meaning for option in ConfigFile(files["train"].read_text()).options()}
    commands = sorted((name for name in files if "/" not in name), key=lambda name: (name != "train", name))
    groups = sorted({name.partition("/")[0] for name in files if "/" in name})
    yield "## Commands\n"
    for name in commands:
        yield section(f"apo {name}", files[name], {})
    for group in groups:
        yield f"## {group}=\n"
        for name in sorted(name for name in files if name.startswith(f"{group}/")):
            yield section(f"{group}={name.partition('/')[2]}", files[name], meanings)


def section(title: str, path: Path, meanings: Mapping[str, str]) -> str:
    """One file: its comment, what it is built on, and a row for each key.

    A file of the package `_global_` sets keys of `apo train`, which have the `meanings` that they have there.
    """
    file = ConfigFile(path.read_text())
    known = meanings if file.text.startswith("# @package _global_") else {}
    parts = [f"### {title}", "", *_summary(file.summary)]
    if file.built_on:
        parts += [f"Built on {', '.join(f'`{entry}`' for entry in file.built_on)}.", ""]
    options = file.options()
    if options:
        parts += ["| key | default | meaning |", "|:--|:--|:--|", *(_row(item, known) for item in options), ""]
    return "\n".join(parts)


def _summary(text: str) -> list[str]:
    prose = [line for line in text.splitlines() if not line.startswith(" ")]
    examples = [line.strip() for line in text.splitlines() if line.startswith(" ")]
    return [
        _escaped(" ".join(prose)),
        "",
        *(["```console", *(f"$ {line}" for line in examples), "```", ""] if examples else []),
    ]


def _row(option: Option, known: Mapping[str, str]) -> str:
    default = f"`{option.default}`".replace("|", r"\|") if option.default else ""
    return f"| `{option.key}` | {default} | {_escaped(option.meaning or known.get(option.key, ''))} |"


def _escaped(text: str) -> str:
    r"""Characters that Markdown reads as markup, outside of code: <run> and |A|."""
    return re.sub(r"(`[^`]*`)|([<>|*_$\[\]])", lambda m: m[1].replace("|", r"\|") if m[1] else "\\" + m[2], text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""

    def read(_: Sphinx, docname: str, source: list[str]) -> None:
        if docname == DOCNAME:
            source[0] += "\n" + "\n".join(sections())

    app.connect("source-read", read)
    return {"parallel_read_safe": False}

"""The options of config groups: their names, globs over them, and what they instantiate."""

import difflib
import os
import re
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from omegaconf import DictConfig, OmegaConf

from apo_lightning.common.formatting import flatten
from apo_lightning.errors import ConfigError
from apo_lightning.run.lightning_options import GONE

CONFIG_DIR = Path(__file__).resolve().parents[1] / "configs"
"""The framework's own configurations."""
BASE = "base"
"""A file of this name is what the others of its folder are built on, and no option itself."""


def config_folders() -> tuple[Path, ...]:
    """Folders of configurations in Hydra's search order: the user's, the framework's, other packages'."""
    elements = create_config_search_path(str(CONFIG_DIR)).get_path()
    urls = [str(element.path).partition("://") for element in elements if element.provider not in ("hydra", "schema")]
    return tuple(Path(str(files(path))) if scheme == "pkg" else Path(path or scheme) for scheme, _, path in urls)


def composed(name: str, overrides: Sequence[str] = (), *, with_hydra: bool = False) -> DictConfig:
    """Compose the primary configuration `name` as the command line does, inside a command or outside of one."""
    is_running = GlobalHydra.instance().is_initialized()
    with nullcontext() if is_running else initialize_config_dir(str(CONFIG_DIR), version_base="1.3"):
        return compose(name, overrides=[*overrides], return_hydra_config=with_hydra)


def refuse_unread(cfg: DictConfig, name: str) -> None:
    """Raise `ConfigError` for a setting that `+` or a file has added where nothing reads it.

    What stands beside the sections of a configuration is read by its name; sections refuse strange keys themselves.
    """
    known = [*composed(name), *(group.name for folder in config_folders() for group in folder.glob("*/"))]
    known += GONE  # a run says itself what to give in place of these
    for key in map(str, cfg):
        if key not in known and not interpolates(cfg, key):
            raise ConfigError(f"{key}: no setting has this name{nearest(key, composed(name))}")


def interpolates(cfg: DictConfig, key: str) -> bool:
    """Whether a value of the configuration is made of this one, `${key}`, or of one below it."""
    return re.search(rf"\$\{{{re.escape(key)}[}}.\[]", OmegaConf.to_yaml(cfg)) is not None


def nearest(key: str, cfg: DictConfig) -> str:
    """How a message goes on that says a setting does not exist: with the ones of a similar name.

    Example:
        >>> nearest("lr", OmegaConf.create({"optimizer": {"lr": 1e-6, "eps": 1e-8}}))
        '; the nearest is optimizer.lr'
    """
    keys = [*flatten(cast("dict[str, Any]", OmegaConf.to_container(cfg)))]
    groups = [group.name for folder in config_folders() for group in folder.glob("*/")]
    last = [each for each in keys if key.rpartition(".")[2] == each.rpartition(".")[2]]
    words = key.rpartition(".")[2].split("_")
    near = last or difflib.get_close_matches(key, [*keys, *groups], 1)
    near = near or [each for each in keys if {*words} == {*each.rpartition(".")[2].split("_")}]
    return f"; the nearest is {' or '.join(near[:3])}" if near else "; --cfg job shows all"


def typed_overrides() -> list[str]:
    """The overrides of this command as typed, without Hydra's own."""
    return list(HydraConfig.get().overrides.task)


def options_of(group: str) -> list[str]:
    """Names of a group's options, including those of subgroups; empty if there is no such group."""
    found = ((folder / group, path) for folder in config_folders() for path in (folder / group).rglob("*.yaml"))
    return sorted({path.relative_to(of).with_suffix("").as_posix() for of, path in found if path.stem != BASE})


def option_or_default(group: str, name: str) -> str:
    """`${option_or_default:group,name}` in a list of defaults: the option of that name, else the one named default."""
    return name if name in options_of(group) else "default"


OmegaConf.register_new_resolver("option_or_default", option_or_default, replace=True)


def targets_of(group: str) -> set[str]:
    """Every `_target_` that a group's options name, in the user's own folder and in installed packages.

    Example:
        >>> targets_of("policy")
        {'apo_lightning.model.lora.LoRA'}
    """
    texts = [path.read_text() for folder in config_folders() for path in (folder / group).rglob("*.yaml")]
    return {target for text in texts for target in re.findall(r"_target_: *([\w.]+)", text)}


def expand_glob(argument: str) -> str:
    """Replace `experiment=glob(paper/*)` by the list of matching options; any other argument is returned unchanged.

    Hydra's own glob matches within one folder, and a sweep over no option ends silently. Raises `ConfigError` if
    nothing matches.

    Example:
        >>> expand_glob("algo=glob([psr,n*])")
        'algo=nsr,psr'
        >>> expand_glob("policy=glob(*,exclude=l*)")
        'policy=full'
    """
    key, is_glob, _ = argument.partition("=glob(")
    if not is_glob or key.lstrip("+").startswith("hydra"):
        return argument
    override = OverridesParser.create().parse_override(argument)
    glob = override.value()
    assert isinstance(glob, Glob)
    options = options_of(override.key_or_group)
    if not options:
        raise ConfigError(f"{argument}: {override.key_or_group} is no config group, so there is nothing to match")
    matches = glob.filter(options)
    if not matches:
        raise ConfigError(f"{argument} matches none of {', '.join(options)}")
    return f"{key}={','.join(matches)}"


def quote_paths(argument: str) -> str:
    """Expand a `~` that the shell has left, and quote what Hydra's grammar reads in quotes alone: `~`, and non-ASCII.

    Example:
        >>> quote_paths("data.path=/tmp/données/a.jsonl")
        "data.path='/tmp/données/a.jsonl'"
        >>> quote_paths("data.exclude=[a.jsonl,'é.jsonl',ü.jsonl]")
        "data.exclude=[a.jsonl,'é.jsonl','ü.jsonl']"
        >>> quote_paths("~callbacks.monitor")
        '~callbacks.monitor'
    """
    key, _, value = argument.partition("=")
    if "{" in value or re.match(r"\w+\(", value):
        return argument
    words = re.sub(r"""'(\\.|[^'])*'|"(\\.|[^"])*"|[^,\[\]'"\s][^,\[\]'"]*""", _quoted, value)
    return argument if words == value else f"{key}={words}"


def _quoted(found: re.Match[str]) -> str:
    word = found[0]
    if word[0] in "'\"" or (word.isascii() and "~" not in word):
        return word
    return f"'{os.path.expanduser(word)}'"  # noqa: PTH111 - a Path would drop a last slash


def refuse_mistyped(argument: str) -> None:
    """Raise `ConfigError` for a setting that is typed as a flag, and `group=null`, which Hydra answers at length.

    Example:
        >>> refuse_mistyped("--cfg"), refuse_mistyped("resume=null")
        (None, None)
        >>> refuse_mistyped("--algo")
        Traceback (most recent call last):
        apo_lightning.errors.ConfigError: --algo: a setting is typed without dashes and with =, algo=VALUE
    """
    word, _, value = argument.removeprefix("--").partition("=")
    own = re.findall(r"--[\w-]+", get_args_parser().format_usage())
    if argument.startswith("--") and word and not any(flag.startswith(f"--{word}") for flag in own):
        raise ConfigError(f"--{word}: a setting is typed without dashes and with =, {word}={value or 'VALUE'}")
    if value == "null" and options_of(word):
        raise ConfigError(f"{argument}: leave it out, or choose one of configs/{word}")

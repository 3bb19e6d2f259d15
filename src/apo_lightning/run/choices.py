"""The options of config groups, as typed: globs over all of them, and near names of one that is not there."""

import difflib
from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob
from hydra.errors import MissingConfigException

from apo_lightning.errors import ConfigError

CONFIG_DIR = Path(__file__).resolve().parents[3] / "configs"
BASE = "base"
"""A file of this name is what the others of its folder are built on, and no option itself."""


def options_of(group: str) -> list[str]:
    """Names of a group's options, those of groups within it included; none where there is no such group.

    Example:
        >>> options_of("policy")
        ['full', 'lora']
        >>> options_of("experiment")[0]
        'lab/countdown'
    """
    folder = CONFIG_DIR / group
    return sorted(
        path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml") if path.stem != BASE
    )


def expand_glob(argument: str) -> str:
    """`experiment=glob(paper/*)` as the list that it stands for; any other argument as it is.

    Hydra's own glob sees the options of one folder alone, and a sweep over nothing ends without a word.

    Args:
        argument: one of the command line's.

    Raises:
        ConfigError: nothing matches, or what is swept is no config group.

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


def refuse_null(argument: str) -> None:
    """Hydra has no way to take a group's choice back, and says so in a traceback.

    Raises:
        ConfigError: a group of this project is to be null.

    Example:
        >>> refuse_null("resume=null")
        >>> refuse_null("experiment=null")
        Traceback (most recent call last):
        apo_lightning.errors.ConfigError: experiment=null: leave it out, or choose one of configs/experiment
    """
    group, _, value = argument.partition("=")
    if value == "null" and (CONFIG_DIR / group).is_dir():
        raise ConfigError(f"{argument}: leave it out, or choose one of configs/{group}")


def missing_choice(error: MissingConfigException) -> str | None:
    """A message on an option that is not there, with the names near it, or all; None: it is no option of ours.

    Example:
        >>> missing_choice(MissingConfigException("", missing_cfg_file="policy/fulll"))
        'there is no configs/policy/fulll.yaml; near it: policy=full'
    """
    group, _, name = (error.missing_cfg_file or "").partition("/")
    options = options_of(group) if group else []
    if not options:
        return None
    near = difflib.get_close_matches(name, options)
    names = ", ".join(f"{group}={option}" for option in near) if near else ", ".join(options)
    return f"there is no configs/{group}/{name}.yaml; {'near it' if near else 'there are'}: {names}"

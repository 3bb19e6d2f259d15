"""Refuses what is no number, or not true or false, where one is needed, before anything is made of a configuration."""

import inspect
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from apo_lightning.errors import ConfigError
from apo_lightning.run.choices import config_folders

_WANTED = {float: "a number", int: "a whole number", bool: "true or false"}
"""What is asked for in words; of several kinds the first."""
_PLAIN = {*_WANTED, NoneType}


def check_numbers(cfg: DictConfig, primary: str) -> None:
    """Raise `ConfigError` for another kind of value than the number, or true or false, in the primary configuration.

    For all commands, and without imports: `apo evaluate seed=first` need not wait for torch.
    """
    file = next(path for folder in config_folders() if (path := folder / f"{primary}.yaml").is_file())
    for key, default in _leaves(OmegaConf.to_container(OmegaConf.load(file))):
        if type(default) in _WANTED:
            _check(key, OmegaConf.select(cfg, key), {type(default), NoneType})  # many are off when null


def check_arguments(cfg: DictConfig, root: Mapping[str, Any]) -> None:
    """Raise `ConfigError` for what is no number, or not true or false, where the class of a `_target_` annotates one.

    Imports every target of the configuration; `instantiate` has the message on one that cannot be imported. `root` has
    the annotations of the configuration's own keys.
    """
    for name, node in cast("dict[str, Any]", OmegaConf.to_container(cfg, resolve=True)).items():
        _check_node(name, node, set(_alternatives(root.get(name))))


def _leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_node(key: str, node: Any, kinds: set[Any]) -> None:
    """Check a value, which should be of these kinds, and all that it holds."""
    target = node.get("_target_") if isinstance(node, Mapping) else None
    if target is None:
        _check(key, node, kinds)
    inner = _kinds_of(target) if target else {}
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for name, each in items:
        _check_node(f"{key}.{name}", each, inner.get(str(name), set()))


def _kinds_of(target: str) -> Mapping[str, set[Any]]:
    """What a target takes, by argument; nothing if it, or one of its annotations, cannot be found."""
    try:
        return _kinds(get_object(target))
    except Exception:
        return {}


def _kinds(called: Any) -> dict[str, set[Any]]:
    hints = get_type_hints(called.__init__ if inspect.isclass(called) else called)
    kinds = {name: set(_alternatives(hint)) for name, hint in hints.items()}
    for name, parameter in inspect.signature(called).parameters.items():
        if parameter.default is None:  # allowed, whatever the annotation says
            kinds.get(name, set()).add(NoneType)
    return kinds


def _alternatives(hint: Any) -> Iterator[Any]:
    if get_origin(hint) in (Union, UnionType):
        for each in get_args(hint):
            yield from _alternatives(each)
    else:
        yield hint


def _check(key: str, value: Any, kinds: set[Any]) -> None:
    """Refuse a value if its kinds have a number or a truth value, and it is none and of no other kind."""
    wanted = next((words for kind, words in _WANTED.items() if kind in kinds), None)
    # An int is a number of any kind, and 0 and 1 are truth values: Python takes them so.
    is_plain = isinstance(value, int) or (isinstance(value, float) and float in kinds)
    is_allowed = is_plain or (value is None and NoneType in kinds)
    if wanted and not is_allowed and not any(_may_be(value, kind) for kind in kinds - _PLAIN):
        raise ConfigError(f"{key} is {'null' if value is None else repr(value)}: give {wanted}")


def _may_be(value: Any, kind: Any) -> bool:
    """Whether a value may be of a kind that is no plain number; what is no class, such as `Any`, is not judged."""
    return not isinstance(kind, type) or isinstance(value, kind)

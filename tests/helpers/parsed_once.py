"""Keeps parsed configuration files. Hydra parses each of them whenever it composes; here only after a change.

The tests of a process compose a thousand times, at two thirds of the cost. What tests start in processes of their own
is composed as a user's is.
"""

import copy
from pathlib import Path

from hydra._internal.config_repository import ConfigRepository
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigResult, ConfigSource

_load = ConfigRepository.load_config
_parsed: dict[tuple[object, ...], ConfigResult | None] = {}


def _load_once(repository: ConfigRepository, config_path: str) -> ConfigResult | None:
    source = repository._find_object_source(config_path, ObjectType.CONFIG)
    # Not by class: Hydra imports its plugins by itself, a second time.
    if source is None or source.scheme() not in ("file", "pkg"):
        return _load(repository, config_path)
    key = (source.path, source.provider, config_path, *_state(source, config_path))
    if key not in _parsed:
        _parsed[key] = _load(repository, config_path)
    return copy.deepcopy(_parsed[key])  # Hydra changes what it has loaded


def _state(source: ConfigSource, config_path: str) -> tuple[object, ...]:
    """What a change of the file changes; of an installed package's, nothing."""
    if source.scheme() == "pkg":
        return ()
    path = Path(source.path, source._normalize_file_name(config_path)).absolute()
    status = path.stat()
    return path, status.st_mtime_ns, status.st_size


ConfigRepository.load_config = _load_once

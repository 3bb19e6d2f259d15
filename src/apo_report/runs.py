"""Training runs as they lie on disk, and the settings that they vary, from their own configurations."""

import json
import math
import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import yaml

from apo_lightning.common.files import read_yaml_text
from apo_lightning.common.formatting import flatten
from apo_lightning.common.identity import Identity, read_record
from apo_lightning.errors import ConfigError
from apo_report.names import AXES, METHODS, MODELS, in_order, variant_name
from apo_report.records import RunCard

PRUNED = frozenset({"checkpoints", "rollouts"})
"""Folders of a run that hold neither runs nor evaluations, but thousands of files."""
FILES = (".hydra/config.yaml", ".hydra/hydra.yaml", "metrics.csv")
"""What every folder of a run has, besides its `identity.json`."""
IDENTITY_VERSION = 1
"""Of the format of `identity.json`."""
RunsByMethod = Mapping[str, Sequence[RunCard]]
"""Printed method and setting → its runs, which differ in their seed alone."""
T = TypeVar("T")
Defaults = Mapping[str, Mapping[str, str]]
"""Stem of `algo=` → the flat configuration where nothing is overridden, as `commands.report` composes it."""
NO_AXIS = frozenset({"algo", "model", "seed", "experiment"})
"""Method and model have columns of their own, seeds are averaged over, an experiment is a bundle of other keys."""
NO_CAUSE = frozenset({"callbacks", "logger", "checkpoint", "resume", "preflight", "hydra"})
"""First parts of config keys that what is learned does not depend on."""


def read_runs(folders: Iterable[Path]) -> tuple[RunCard, ...]:
    """Every training run under the folders, in the order of their paths; each once. A run is a folder with `FILES`.

    Raises:
        ConfigError: a folder does not exist, or a run's files cannot be read.
    """
    found = {path.parent.resolve() for path in find_files(folders, "metrics.csv")}
    return tuple(_read_run(folder) for folder in sorted(found) if all((folder / name).is_file() for name in FILES))


def runs_by_method(runs: Sequence[RunCard], defaults: Defaults | None = None) -> dict[str, RunsByMethod]:
    """The runs of each model by method and setting, under printed names; the same weights count once.

    Methods are in the paper's order; of each its defaults come first, then what runs change, by value.
    """
    keys, labels = axes(runs), in_order((run.label for run in runs), METHODS.values())
    departures = [(run, settings(run, keys, defaults)) for run in runs]

    def place(departure: tuple[RunCard, Mapping[str, str]]) -> tuple[int, bool, list[tuple[bool, float, str]]]:
        run, changed = departure
        return labels.index(run.label), bool(changed), [value_place(run.config.get(key, "")) for key in keys]

    found: dict[str, dict[str, dict[str, RunCard]]] = defaultdict(lambda: defaultdict(dict))
    for run, changed in sorted(departures, key=place):
        found[MODELS[run.model]][variant_name(run.label, changed)][policy_of(run)] = run
    return {
        model: {name: list(policies.values()) for name, policies in found[model].items()}
        for model in in_order(found, MODELS.values())
    }


def policy_of(run: RunCard) -> str:
    """The hash of the final weights; the folder of a run without a summary."""
    return run.summary.get("weights_sha256") or f"of {run.folder}"


def find_files(folders: Iterable[Path], name: str) -> Iterator[Path]:
    """Every file of this name under the folders. Raises `ConfigError` if a folder does not exist."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"runs: {folder} is no folder: name one that holds runs or evaluations, such as outputs")
        for parent, children, files in os.walk(folder):
            children[:] = sorted(set(children) - PRUNED)
            if name in files:
                yield Path(parent) / name


def read_metrics(path: Path) -> pd.DataFrame:
    """`metrics.csv`, a row a step; NaN for empty cells and values that are not finite; columns without any left out.

    A step that stands there twice, as after a resume, counts with its last values.

    Raises:
        ConfigError: a cell is no number, or there is no column `step`.
    """
    try:
        table: Any = pd.read_csv(path).apply(pd.to_numeric).replace([math.inf, -math.inf], math.nan)
        return table.drop(columns="epoch", errors="ignore").groupby("step").last().dropna(axis="columns", how="all")
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except KeyError as error:
        raise ConfigError(f"{path}: has no column `step`: delete the run's folder or train again") from error
    except ValueError as error:
        fault = " ".join(str(error).split())
        raise ConfigError(f"{path}: {fault} (row 0 is the first below the header): cut off that row") from error


def read_summary(path: Path) -> Mapping[str, Any]:
    """`summary.json`, empty where there is none; raises `ConfigError`."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}): delete it, or train again") from error


def axes(runs: Sequence[RunCard]) -> tuple[str, ...]:
    """The keys in which configurations of runs of one method and model differ, the paper's first.

    A key that interpolates another one, as `${optimizer.lr}`, follows it. A group of which runs have different options,
    as `data=`, stands for all keys below it.
    """
    found = set[str]()
    for group in grouped(runs, lambda run: (run.algo, run.model)):
        keys = {key for run in group for key in run.config if may_matter(key) and key not in run.derived}
        found |= {key for key in keys if len({plain(run.config.get(key, "")) for run in group}) > 1}
    return tuple(in_order((key for key in found if not found & {key.partition(".")[0]} - {key}), AXES))


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items with equal keys together."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def settings(run: RunCard, keys: Iterable[str], defaults: Defaults | None = None) -> dict[str, str]:
    """Where the run departs from its method's defaults along the axes; a value without a default always shows."""
    usual = (defaults or {}).get(run.algo, {})
    shown = {key: plain(run.config[key]) for key in keys if key in run.config}
    return {key: value for key, value in shown.items() if key not in usual or value != plain(usual[key])}


def may_matter(key: str) -> bool:
    """Whether a setting may divide the runs of one method and model."""
    return key not in NO_AXIS and key.partition(".")[0] not in NO_CAUSE


def plain(value: str) -> str:
    """A number in its shortest spelling, `0.10` → `0.1`, any other text as it is."""
    try:
        return f"{float(value):g}"
    except ValueError:
        return value


def value_place(value: str) -> tuple[bool, float, str]:
    """Sort key: numbers by size, then other texts by name."""
    try:
        return (False, float(value), value)
    except ValueError:
        return (True, 0.0, value)


def flat_settings(config: Mapping[str, Any], choices: Mapping[str, str | None]) -> dict[str, str]:
    """A composed configuration, flat, with `${key}` replaced by that key's value, and the option of each group."""
    flat = flatten(config)
    # A group such as base/update@_global_ is no section of the configuration.
    found = {group: option for group, option in choices.items() if option and {"/", "@"}.isdisjoint(group)}
    for key, value in flat.items():
        found[key] = flat.get(value[2:-1], value) if value.startswith("${") else value
    return found


def _read_run(folder: Path) -> RunCard:
    composed, hydra = (_read_yaml(folder / ".hydra" / f"{name}.yaml") for name in ("config", "hydra"))
    try:
        choices = hydra["hydra"]["runtime"]["choices"]
        config, algo = flat_settings(composed, choices), choices["algo"]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{folder}/.hydra/hydra.yaml lacks {error}: not a file that Hydra wrote") from error
    return RunCard(
        folder=folder,
        algo=algo,
        model=config.get("model.name", "?"),
        config=config,
        derived=frozenset(key for key, value in flatten(composed).items() if value.startswith("${")),
        identity=_read_identity(folder / "identity.json"),
        metrics=read_metrics(folder / "metrics.csv"),
        summary=read_summary(folder / "summary.json"),
    )


def _read_identity(path: Path) -> Identity:
    if not path.is_file():
        raise ConfigError(f"{path} is missing: the run was trained by an earlier version, name other folders in runs=")
    return read_record(path, dict[str, dict[str, str]], IDENTITY_VERSION).get("identity", {})


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        content: Any = yaml.safe_load(read_yaml_text(path))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {type(content).__name__}, not dict: not a file that Hydra wrote")
    return content

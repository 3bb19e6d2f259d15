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

from apo_lab.reporting.names import AXES, METHODS, MODELS, in_order, variant_name
from apo_lab.reporting.records import RunCard
from apo_lightning.common.files import read_yaml_text
from apo_lightning.common.formatting import flatten
from apo_lightning.errors import ConfigError

PRUNED = frozenset({"checkpoints", "rollouts"})
"""Folders of a run that hold neither runs nor evaluations, but thousands of files."""
RunsByMethod = Mapping[str, Sequence[RunCard]]
"""Printed method and setting → its runs, which differ in their seed alone."""
T = TypeVar("T")
Defaults = Mapping[str, Mapping[str, str]]
"""Stem of `algo=` → dotted key → value where nothing is overridden, as `commands.report` composes them."""
NO_AXIS = frozenset({"algo", "model", "seed", "experiment"})
"""Method and model have columns of their own, seeds are averaged over, an experiment is a bundle of other keys."""
NO_CAUSE = frozenset({"callbacks", "logger", "checkpoint", "resume", "preflight", "hydra"})
"""First parts of config keys that what is learned does not depend on."""


def read_runs(folders: Iterable[Path]) -> tuple[RunCard, ...]:
    """Every training run under the folders, in the order of their paths; each once.

    A run is a folder with `.hydra/config.yaml`, `.hydra/overrides.yaml` and `metrics.csv`.

    Raises:
        ConfigError: a folder does not exist, or a run's files cannot be read.
    """
    found = {path.parent.resolve() for path in find_files(folders, "metrics.csv")}
    return tuple(
        _read_run(folder)
        for folder in sorted(found)
        if all((folder / ".hydra" / name).is_file() for name in ("config.yaml", "overrides.yaml"))
    )


def runs_by_method(runs: Sequence[RunCard], defaults: Defaults | None = None) -> dict[str, RunsByMethod]:
    """The runs of each model by method and setting, under printed names; the same weights count once.

    Methods are in the paper's order; of each its defaults come first, then what runs change, by value.
    """
    keys, labels = axes(runs, defaults), in_order((run.label for run in runs), METHODS.values())
    departures = [(run, settings(run, keys, defaults)) for run in runs]

    def place(departure: tuple[RunCard, Mapping[str, str]]) -> tuple[int, bool, list[tuple[bool, float, str]]]:
        run, changed = departure
        return labels.index(run.label), bool(changed), [value_place(value_of(run, key, defaults) or "") for key in keys]

    found: dict[str, dict[str, dict[str, RunCard]]] = defaultdict(lambda: defaultdict(dict))
    for run, changed in sorted(departures, key=place):
        found[MODELS[run.model]][variant_name(run.label, changed)][policy_of(run)] = run
    return {
        model: {name: list(policies.values()) for name, policies in found[model].items()}
        for model in in_order(found, MODELS.values())
    }


def policy_of(run: RunCard) -> str:
    """The hash of the final weights; the folder of a run without a summary."""
    return run.summary.get("weights_sha256") or str(run.folder)


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


def parse_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Hydra overrides, by key: `++algo.loss.pull_coef=0.02` → `algo.loss.pull_coef`: `0.02`; the last of a key wins."""
    pairs = (override.lstrip("+~").partition("=") for override in overrides)
    return {key: value for key, _, value in pairs}


def interpolated(flat: Mapping[str, str]) -> dict[str, str]:
    """A flat config with each `${key}` replaced by that key's value."""
    return {key: flat.get(value[2:-1], value) if value.startswith("${") else value for key, value in flat.items()}


def read_summary(path: Path) -> Mapping[str, Any]:
    """`summary.json`, empty where there is none; raises `ConfigError`."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path}: not JSON ({error}): delete it, or train again") from error


def axes(runs: Sequence[RunCard], defaults: Defaults | None = None) -> tuple[str, ...]:
    """The overridden keys whose values differ among the runs of one method and model, the paper's first.

    An overridden `experiment=` stands for every config key in which runs of one method and model differ. Where runs
    are alike in all these and their composed configs still differ, as after an edit of a YAML file, so do the keys in
    which they do: seeds are averaged of one configuration alone.
    """
    groups, found = grouped(runs, lambda run: (run.algo, run.model)), set[str]()
    for group in groups:
        found |= _differing(group, {key for run in group for key in _candidates(run)}, defaults)
    named = sorted(found)
    for group in groups:
        for alike in grouped(group, lambda run: tuple(value_of(run, key, defaults) for key in named)):
            composed = [run for run in alike if run.config]
            found |= _differing(composed, {key for run in composed for key in run.config if _may_matter(key)})
    return tuple(in_order(found, AXES))


def grouped(items: Iterable[T], key: Callable[[T], Hashable]) -> list[list[T]]:
    """The items with equal keys together."""
    groups: dict[Hashable, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())


def settings(run: RunCard, keys: Sequence[str], defaults: Defaults | None = None) -> dict[str, str]:
    """Where the run departs from its method's defaults along the axes; an axis without a known default always shows."""
    usual = (defaults or {}).get(run.algo, {})
    values = {key: value_of(run, key, defaults) for key in keys}
    return {
        key: value
        for key, value in values.items()
        if value is not None and not (key in usual and value == plain(usual[key]))
    }


def value_of(run: RunCard, key: str, defaults: Defaults | None = None) -> str | None:
    """The run's value of a key, numbers in one spelling; None where it has no such key.

    From the composed config; from what was typed where a key chooses a config group, as `data=`, or where the config
    is not at hand; else the default.
    """
    usual = (defaults or {}).get(run.algo, {})
    value = run.config.get(key, run.overrides.get(key, usual.get(key)))
    return None if value is None else plain(value)


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


def _read_run(folder: Path) -> RunCard:
    config = interpolated(flatten(_read_yaml(folder / ".hydra" / "config.yaml")))
    overrides = parse_overrides(_read_yaml(folder / ".hydra" / "overrides.yaml", kind=list))
    return RunCard(
        folder=folder,
        algo=_algo(folder, config, overrides),
        model=config.get("model.name", overrides.get("model", "?")),
        overrides=overrides,
        config=config,
        metrics=read_metrics(folder / "metrics.csv"),
        summary=read_summary(folder / "summary.json"),
    )


def _algo(folder: Path, config: Mapping[str, str], overrides: Mapping[str, str]) -> str:
    """The stem of the `algo=` in force, which an experiment may have set; the loss's class where none is recorded."""
    path = folder / ".hydra" / "hydra.yaml"
    choices = _read_yaml(path).get("hydra", {}).get("runtime", {}).get("choices", {}) if path.is_file() else {}
    return choices.get("algo") or overrides.get("algo", config.get("algo.loss._target_", "?").rpartition(".")[2])


def _read_yaml(path: Path, kind: type[dict] | type[list] = dict) -> Any:
    try:
        content: Any = yaml.safe_load(read_yaml_text(path)) or kind()
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(content, kind):
        raise ConfigError(f"{path}: holds {type(content).__name__}, not {kind.__name__}: not a file that Hydra wrote")
    return content


def _differing(runs: Sequence[RunCard], keys: Iterable[str], defaults: Defaults | None = None) -> set[str]:
    return {key for key in keys if len({value_of(run, key, defaults) for run in runs}) > 1}


def _candidates(run: RunCard) -> Iterator[str]:
    typed = [key for key in run.overrides if _may_matter(key)]
    bundle = [key for key in run.config if _may_matter(key)] or ["experiment"]
    yield from (*typed, *(bundle if "experiment" in run.overrides else ()))


def _may_matter(key: str) -> bool:
    return key not in NO_AXIS and key.partition(".")[0] not in NO_CAUSE

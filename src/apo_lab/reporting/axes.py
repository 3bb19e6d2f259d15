"""Finds the settings that a sweep varied, from the runs' own configurations."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from apo_lab.reporting.names import AXES, in_order
from apo_lab.reporting.records import RunCard

T = TypeVar("T")
Defaults = Mapping[str, Mapping[str, str]]
"""Stem of `algo=` → dotted key → value where nothing is overridden, as `commands.report` composes them."""

NO_AXIS = frozenset({"algo", "model", "seed", "experiment"})
"""Method and model have columns of their own, seeds are averaged over, an experiment is a bundle of other keys."""
NO_CAUSE = frozenset({"callbacks", "logger", "checkpoint", "resume", "preflight", "hydra"})
"""First parts of config keys that what is learned does not depend on."""


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


def _differing(runs: Sequence[RunCard], keys: Iterable[str], defaults: Defaults | None = None) -> set[str]:
    return {key for key in keys if len({value_of(run, key, defaults) for run in runs}) > 1}


def _candidates(run: RunCard) -> Iterator[str]:
    typed = [key for key in run.overrides if _may_matter(key)]
    bundle = [key for key in run.config if _may_matter(key)] or ["experiment"]
    yield from (*typed, *(bundle if "experiment" in run.overrides else ()))


def _may_matter(key: str) -> bool:
    return key not in NO_AXIS and key.partition(".")[0] not in NO_CAUSE

"""The settings of each tuned method: its configuration with the highest mean endpoint over the tuning seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from apo_lab.editions.protocol import Arm, Protocol

TUNING = "tuning"
"""The stage whose runs choose the settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One configuration of a tuned method, with the runs that were made of it."""

    family: str
    arm: Arm
    values: tuple[float, ...]
    """The endpoint `tuned_by` of its finished runs, in the order of the tuning seeds; 0 where it misses L*."""
    num_seeds: int
    """Runs that the protocol asks for."""

    @property
    def mean(self) -> float | None:
        """Mean over the tuning seeds; None before all its runs are finished."""
        return fmean(self.values) if 0 < self.num_seeds == len(self.values) else None


def configurations(protocol: Protocol, runs: pd.DataFrame) -> list[Configuration]:
    """Every configuration of every tuned method, by family, in the order of the protocol.

    Of `runs`, rows of one registration, it reads the columns stage, world, method, variant, seed and that endpoint.
    """
    if not protocol.tuned:
        return []
    stage = protocol.stage(TUNING)
    rows = runs[runs["stage"] == TUNING]
    keys = zip(rows["world"], rows["method"], rows["variant"], rows["seed"], strict=True)
    endpoint = pd.Series(rows[protocol.tuned_by], dtype=float).fillna(0.0)
    values = dict(zip(keys, endpoint, strict=True))
    found = []
    for family, world in protocol.tuning.items():
        seeds = stage.seeds.get(world, ())
        for arm in (arm for method in stage.methods for arm in protocol.tuned[method].arms(family)):
            keys = [(world, arm.method, arm.variant, seed) for seed in seeds]
            done = tuple(values[key] for key in keys if key in values)
            found.append(Configuration(family=family, arm=arm, values=done, num_seeds=len(seeds)))
    return found


def chosen(protocol: Protocol, runs: pd.DataFrame) -> Mapping[tuple[str, str], Arm]:
    """(method, family) → its configuration with the highest mean, the first of those with equal means.

    A method is absent until all runs of all its configurations are finished: a choice among some would depend on the
    order of runs.
    """
    by_method: dict[tuple[str, str], list[Configuration]] = {}
    for each in configurations(protocol, runs):
        by_method.setdefault((each.arm.method, each.family), []).append(each)
    best: dict[tuple[str, str], Arm] = {}
    for key, members in by_method.items():
        means = [each.mean for each in members]
        known = [mean for mean in means if mean is not None]
        if len(known) == len(means):
            best[key] = members[means.index(max(known))].arm
    return best

"""Reads the published tables of an edition, and finds the runs of each arm in them."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from apo_lab.editions.protocol import (
    ALIKE,
    AVERAGED,
    BLOCKS,
    DECODED,
    DECODINGS,
    ENDPOINTS,
    HALF,
    Protocol,
    Stage,
    method_of,
)
from apo_lab.statistics.levels import Curves, at_levels
from apo_lab.statistics.verdicts import ArmScores, pseudo_values
from apo_lightning.errors import ConfigError
from apo_report.names import METHODS

Frame = Any
"""A `pd.DataFrame`: its selections have too many types to be checked."""
Values = Float[NDArray[np.float64], "values"]
MAIN = "main"
"""The stage of the tuned methods; other stages compare their arms with its runs."""
KEY = ("world", "method", "variant", "seed")
KS = (1, 8, 64)
_TEXT = ("world", "method", "variant", "stage", "registration")
_METRICS = ("pass@1", "pass@8", "pass@64", "alive", "strategy_entropy", "tokens_sampled", "tokens_trained", "seconds")
_ENDPOINTS = {name: "pass@64" if name == "last" else name for name in ENDPOINTS}
"""Endpoint of a question → its column in `runs.csv.gz`."""
_WITHOUT = {name: tuple(f"{name}_without_{block}" for block in range(BLOCKS)) for name in _ENDPOINTS}
DECODED_NAMES = {**DECODINGS, ALIKE: "best decoding of all samples alike", DECODED: "best decoding"}
"""How samples are drawn → its printed name."""
AFTER = {
    **{after: f", {name}" if after else "" for after, name in DECODED_NAMES.items()},
    AVERAGED: ", averaged",
    **{f"{AVERAGED}_{part}": f", {part} third averaged" for part in ("first", "middle", "last")},
    f"{AVERAGED}_outside": ", embeddings and head averaged",
}
"""What follows a method's name → what follows its printed name."""
_BASE = tuple(f"base_pass@{k}" for k in KS)
COLUMNS = {
    "runs.csv.gz": (
        *(*KEY, "stage", *_BASE, *_METRICS, "reached", "level", "area", "area_8", "registration"),
        *(*_WITHOUT["area"], *_WITHOUT["last"]),
    ),
    "curves.csv.gz": (*KEY, "step", "base_weight", *_METRICS),
}
"""Columns that the page needs of each table."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArmRuns:
    """The finished runs of one arm in some worlds."""

    name: str
    """Of the method or arm, as in the protocol."""
    runs: Frame
    """Their rows of `runs.csv.gz`."""
    curves: Frame
    """Their rows of `curves.csv.gz`, with the `level` of each."""
    num_planned: int
    """Runs that the protocol asks for."""

    @property
    def label(self) -> str:
        """The printed name."""
        return arm_name(self.name)

    @property
    def settings(self) -> str:
        """The text of its settings."""
        return " or ".join(variant or "as in its file" for variant in self.runs["variant"].unique())

    def within(self, worlds: Sequence[str]) -> "ArmRuns":
        """The same arm in some of its worlds."""
        runs, curves = (table[table["world"].isin(worlds)] for table in (self.runs, self.curves))
        return replace(self, runs=runs, curves=curves)

    def by_run(self) -> Iterator[tuple[tuple[str, ...], Frame]]:
        """Key and evaluation points of each run."""
        yield from self.curves.groupby([*KEY], sort=False)

    def along(self, levels: Values, metric: str = "pass@64") -> Curves:
        """A metric of each run at the first passage of each level, by world."""
        found: dict[str, list[Values]] = defaultdict(list)
        for (world, *_), points in self.by_run():
            found[world].append(along(points, levels, metric))
        return {world: np.stack(runs, axis=1) for world, runs in found.items()}

    def of_all_worlds(self, levels: Values, metric: str = "pass@64") -> Float[NDArray[np.float64], "levels runs"]:
        """The same of the runs of all worlds together."""
        return np.concatenate([*self.along(levels, metric).values()], axis=1)

    def mean(self, column: str) -> float:
        """Mean of a column over seeds, then over worlds."""
        return float(self.runs.groupby("world")[column].mean().mean())

    def scores(self, endpoint: str) -> ArmScores:
        """An endpoint, as `verdicts.compare` takes it; without the runs that have none, and the worlds of these alone.

        Raises:
            ConfigError: the tables were made before there was this endpoint.
        """
        column, without = _ENDPOINTS[endpoint], list(_WITHOUT[endpoint])
        if column not in self.runs:
            raise ConfigError(f"runs.csv.gz has no column '{column}': make the table with this version of `apo lab`")
        tables = {
            str(world): pseudo_values(
                torch.tensor(rows[column].to_numpy(float)), torch.tensor(rows[without].to_numpy(float))
            )
            for world, rows in self.runs.dropna(subset=[column]).groupby("world", sort=False)
        }
        return ArmScores(name=self.name, tables=tables)

    @cached_property
    def path(self) -> Frame:
        """A row an evaluation point, from the base model: means over seeds, then over worlds.

        It ends where the shortest run ends, so that every point has the same runs.
        """
        place = self.curves.groupby([*KEY]).cumcount().rename("place")
        shortest = self.curves.groupby([*KEY]).size().min()
        by_world = self.curves[place < shortest].groupby(["world", place])[["step", *_METRICS]].mean()
        return by_world.groupby(level="place").mean()


@dataclass(frozen=True, kw_only=True, eq=False)
class Edition:
    """A protocol and the rows of its registration."""

    protocol: Protocol
    runs: Frame
    curves: Frame
    num_refused: int
    """Rows of `runs.csv.gz` of another registration, which are left out."""

    def arm(self, stage: Stage, worlds: Sequence[str], name: str) -> ArmRuns:
        """The planned runs of an arm: those of the stage, or of the stage `main` if the stage has no such arm.

        Raises:
            ConfigError: the arm has several settings in one world.
        """
        own = (*stage.methods, *stage.arms)
        return _find_arm(self, stage.name if method_of(name) in own else MAIN, tuple(worlds), name)

    def groups(self, stage: Stage) -> dict[tuple[str, ...], list[str]]:
        """Worlds that are shown as one → names of the arms there: those of the questions, else of each family."""
        own = [*stage.methods, *stage.arms]
        questions = [question for question in self.protocol.questions if question.stage == stage.name]
        found: dict[tuple[str, ...], list[str]] = {}
        for question in questions:
            named = (name for name in itertools.chain(*question.pairs) if name != HALF)
            found[question.worlds] = [*dict.fromkeys([*found.get(question.worlds, own), *named])]
        family = {world: self.protocol.worlds[world].family for world in stage.seeds}
        seen = set(itertools.chain(*found))
        for name in dict.fromkeys(family[world] for world in stage.seeds if world not in seen):
            found[tuple(world for world in stage.seeds if family[world] == name and world not in seen)] = own
        return found

    def group_name(self, worlds: Sequence[str]) -> str:
        """The family of the worlds if they are several, else the world's name."""
        return self.protocol.worlds[worlds[0]].family if len(worlds) > 1 else worlds[0]

    def arms(self, stage: Stage) -> dict[tuple[str, ...], list[ArmRuns]]:
        """The arms of each group that have a finished run; groups with none are left out."""
        found = {
            worlds: [arm for name in names if len((arm := self.arm(stage, worlds, name)).runs)]
            for worlds, names in self.groups(stage).items()
        }
        return {worlds: arms for worlds, arms in found.items() if arms}

    def ends_at_a_step(self, stage: Stage) -> bool:
        """Whether the stage's runs of a world have equally many evaluation points; they may end at a pass@1 instead."""
        lengths = self.curves.merge(self._trained(stage)[[*KEY]], on=[*KEY]).groupby([*KEY], as_index=False).size()
        return bool((lengths.groupby("world")["size"].nunique() == 1).all())

    def num_done(self, stage: Stage) -> int:
        """Finished runs of a stage."""
        return len(self._trained(stage))

    def _trained(self, stage: Stage) -> Frame:
        """Rows of its runs: an average of weights, or another decoding, is none."""
        return self.runs[(self.runs["stage"] == stage.name) & ~self.runs["method"].str.contains("+", regex=False)]


def read_edition(folder: Path, protocol: Protocol, registration: str) -> Edition:
    """Read `runs.csv.gz` and `curves.csv.gz` of a folder.

    Raises:
        ConfigError: a file, a column or every row of the registration is missing, or two rows have the same key.
    """
    tables = {name: _read(folder / name, columns) for name, columns in COLUMNS.items()}
    runs, curves = tables.values()
    is_ours = runs["registration"] == registration
    if not is_ours.any():
        raise ConfigError(
            f"{folder / 'runs.csv.gz'} has {len(runs)} rows and none of registration {registration[:12]}: "
            "give the edition that they were run from, or run this one with `apo lab`"
        )
    ours = runs[is_ours]
    if (doubled := ours[ours.duplicated([*KEY])]).size:
        key = " ".join(str(doubled.iloc[0][name]) for name in KEY)
        raise ConfigError(f"{folder / 'runs.csv.gz'} has two rows of {key}: keep one")
    return Edition(protocol=protocol, runs=ours, curves=curves, num_refused=int((~is_ours).sum()))


@cache  # a page asks for each arm hundreds of times
def _find_arm(edition: Edition, stage: str, worlds: Sequence[str], name: str) -> ArmRuns:
    seeds = edition.protocol.stage(stage).seeds
    planned = [(world, seed) for world in worlds for seed in seeds.get(world, ())]
    rows = edition.runs[(edition.runs["stage"] == stage) & (edition.runs["method"] == name)]
    rows = rows[pd.MultiIndex.from_frame(rows[["world", "seed"]]).isin(planned)]
    for world, variants in rows.groupby("world")["variant"]:
        if variants.nunique() > 1:
            found = ", ".join(variants.unique())
            raise ConfigError(f"{name} in {world}, stage {stage}, has runs of {found}: keep the chosen one's")
    curves = edition.curves[edition.curves["method"] == name].merge(rows[[*KEY, "level"]], on=[*KEY])
    return ArmRuns(name=name, runs=rows, curves=curves, num_planned=len(planned))


def along(points: Frame, levels: Values, metric: str = "pass@64") -> Values:
    """A metric of one run at the first passage of each level of pass@1; see `at_levels`."""
    ones, values = (points[name].to_numpy(float) for name in ("pass@1", metric))
    return at_levels(ones, values, levels)


def arm_name(name: str) -> str:
    """The printed name of a method or arm: `grpo+average` → `GRPO, averaged`.

    Example:
        >>> arm_name("grpo+average"), arm_name("grpo+average_last"), arm_name("apo"), arm_name("apo+decoded")
        ('GRPO, averaged', 'GRPO, last third averaged', 'APO', 'APO, best decoding')
    """
    method = method_of(name)
    return "one half" if name == HALF else METHODS[method] + AFTER[name.removeprefix(method)]


def _read(path: Path, columns: Sequence[str]) -> Frame:
    if not path.is_file():
        raise ConfigError(f"{path} is missing: `apo lab` writes it, or give the folder of the tables")
    # Settings may be empty, and a text such as "None" is no missing value; a run that never reaches L* has no value
    # there, and the averages of a part of the model have no area.
    endpoints = [name for key in _ENDPOINTS for name in (_ENDPOINTS[key], *_WITHOUT[key])]
    may_be_missing = {name: [""] for name in ("base_weight", "area_8", *endpoints)}
    table = pd.read_csv(path, dtype=dict.fromkeys(_TEXT, str), keep_default_na=False, na_values=may_be_missing)
    if missing := [column for column in columns if column not in table]:
        raise ConfigError(f"{path} has no column '{missing[0]}': make the table with this version of `apo lab`")
    for column in (column for column in columns if column not in _TEXT):
        if not pd.api.types.is_numeric_dtype(table[column]) and len(table):
            raise ConfigError(f"{path}: column '{column}' is not numeric: remove what was typed into it")
    return table

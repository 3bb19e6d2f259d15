"""The runs of the main stages at equal pass@1, level by level: what no registered verdict shows, and its tables."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from hydra.utils import instantiate
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from apo_lab.editions.protocol import AVERAGED, Stage, World, method_of
from apo_lab.reporting.reading import MAIN, ArmRuns, Edition, Frame, arm_name
from apo_lab.statistics.levels import Band, at_levels, difference_band
from apo_lightning.evaluation.records import Estimate
from apo_lightning.run.choices import composed
from apo_report.names import BASE
from apo_report.records import Cell, Table, TableRow, bare, left, right, row_of
from apo_report.tables.cells import EMPTY, PER_CENT, mean_cell, points_cell, share_cell

EXPLORED = "Explored after the runs"
"""Begins the title of what was not registered: no verdict rests on it."""
FROM_L = (-0.11, -0.06, -0.03, -0.015, -0.005, 0.0, 0.01, 0.03, 0.06, 0.10)
"""The levels of the tables, as distances from L*: close together where cliffs are."""
LEAST_SHARE = 0.5
"""A level is in the tables if so many runs of some arm reach it in each world."""
EVERY = 2
"""Every second level and evaluation point is drawn: the lines are smooth, and files half as large."""
SPACING = 0.0025
"""Of the levels that figures and bands have."""
WIDEST_GAP = 0.03
"""Of pass@1 between the evaluation points around a level, median over runs. Inside a wider one a value is that of a
straight line, and its spread between runs is too small."""
GRPO = "grpo"
"""The arm that all others are compared with, in stages that have it."""
OF_ONE_KIND = ("locks", "divisors_by_share")
"""The families of worlds that have a best single strategy."""
Levels = Float[NDArray[np.float64], "levels"]
LOST, COMMITTED = 0.9, 1.0
"""A run is over its cliff where its pass@64 first falls below `LOST`, and has committed itself where the entropy of its
choice of a strategy [nats] first falls below `COMMITTED`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The arms in worlds that are shown as one."""

    name: str
    stage: Stage
    worlds: tuple[str, ...]
    level: float
    """L*; NaN if the worlds have several."""
    arms: Mapping[str, ArmRuns]
    """By name, averages included; those with runs."""

    @property
    def trained(self) -> list[str]:
        """Names of the arms, without averages."""
        return [name for name in self.arms if name == method_of(name)]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(before, after): GRPO, else the first arm, and each other one, then each arm and its average."""
        averaged = [(name, name + AVERAGED) for name in self.trained if name + AVERAGED in self.arms]
        first = GRPO if GRPO in self.trained else self.trained[0]
        return [*((first, name) for name in self.trained if name != first), *averaged]

    @cached_property
    def grid(self) -> Levels:
        """Levels from the base model's pass@1 to the highest that a run reaches, where runs have evaluation points."""
        return self._dense(self._range)

    @property
    def is_dense(self) -> bool:
        """Whether most levels have evaluation points around them."""
        return len(self.grid) > len(self._range) / 2

    @cached_property
    def levels(self) -> Levels:
        """Those of the tables."""
        found = self._dense(np.array([self.level + distance for distance in FROM_L]))
        shares = [
            np.min([np.isfinite(each).mean(1) for each in arm.along(found).values()], 0) for arm in self.arms.values()
        ]
        return found[(np.max(shares, axis=0) >= LEAST_SHARE) & (found > self._base)]

    def band(self, pair: tuple[str, str], metric: str = "pass@64") -> tuple[Levels, Band]:
        """Levels, those of the tables and of `grid`, and the `difference_band` of a pair at them all together."""
        levels = np.unique(np.concatenate([self.levels, self.grid]))
        before, after = (self.arms[name].along(levels, metric) for name in pair)
        common = [world for world in self.worlds if world in before and world in after]
        return levels, difference_band({w: before[w] for w in common}, {w: after[w] for w in common})

    def _dense(self, levels: Levels) -> Float[NDArray[np.float64], "dense"]:
        """The levels around which runs have evaluation points; see `WIDEST_GAP`."""
        gaps: list[Levels] = []
        for name in self.trained:
            for _, points in self.arms[name].by_run():
                ones = points["pass@1"].to_numpy(float)
                after = np.searchsorted(np.maximum.accumulate(ones), levels).clip(1, len(ones) - 1)
                gaps.append(np.where(levels <= ones.max(), ones[after] - ones[after - 1], np.nan))
        has_run = np.isfinite(gaps).any(0)
        return levels[has_run][np.nanmedian(np.array(gaps)[:, has_run], axis=0) <= WIDEST_GAP]

    @property
    def _range(self) -> Levels:
        highest = max(arm.runs["reached"].max() for arm in self.arms.values())
        return np.arange(self._base + SPACING, highest, SPACING, dtype=np.float64)

    @property
    def _base(self) -> float:
        return max(arm.runs["base_pass@1"].max() for arm in self.arms.values())


def groups(edition: Edition) -> list[Group]:
    """Those of `drawn_groups` that have one L*."""
    return [group for group in drawn_groups(edition) if not np.isnan(group.level)]


@cache
def drawn_groups(edition: Edition) -> list[Group]:
    """Those of `compared_groups` that are dense."""
    return [group for group in compared_groups(edition) if group.is_dense]


@cache
def compared_groups(edition: Edition) -> list[Group]:
    """The groups of worlds of the stage `main` and of those whose policies are averaged.

    Those of several L* that are not decoded or of one arm are left out, and so are averages of a part of the model.
    """
    stages = [stage for stage in edition.protocol.stages if stage.name == MAIN or stage.is_averaged]
    found = []
    for stage, worlds, arms in ((one, *each) for one in stages for each in edition.arms(one).items()):
        levels = {edition.protocol.worlds[world].level for world in worlds}
        if len(arms) > 1 and (len(levels) == 1 or stage.is_decoded):
            by_name = {arm.name: arm for arm in arms if arm.name in (m := method_of(arm.name), m + AVERAGED)}
            level = min(levels) if len(levels) == 1 else np.nan
            found.append(Group(name=edition.group_name(worlds), stage=stage, worlds=worlds, level=level, arms=by_name))
    return found


def sparse_groups(edition: Edition) -> list[Group]:
    """Those of `compared_groups` with too few points for a mean at a level, and whose runs end at a pass@1."""
    return [g for g in compared_groups(edition) if not g.is_dense and not edition.ends_at_a_step(g.stage)]


def pair_name(pair: tuple[str, str]) -> str:
    """`APO − GRPO`."""
    return f"{arm_name(pair[1])} − {arm_name(pair[0])}"


@cache  # tables and figures of a page ask for the same worlds
def best_single_strategy(world: World) -> float:
    """pass@1, over the held-out problems, of a policy that answers each of them with the strategy that solves most."""
    source = instantiate(composed("train", [*world.run]).data)
    problems = [row.problem for row in source.load().validation[source.name]]
    answers = map(source.puzzle.answers, problems)
    solved = Counter(strategy for own in answers for strategy in {each.strategy for each in own if each.is_valid})
    return max(solved.values()) / len(problems)


def level_tables(edition: Edition) -> list[Table]:
    """Two tables for each group of worlds with one L*, and one of the worlds where one strategy solves the most."""
    made = [table for group in groups(edition) for table in (means_table(group), differences_table(group))]
    made += [passage_table(found)] if (found := sparse_groups(edition)) else []
    return [*made, worlds_table(edition, compared_groups(edition))]


def passage_table(found: Sequence[Group]) -> Table:
    """Each arm at L* alone, beside the base model."""
    rows: list[TableRow] = []
    for group in found:
        section, level = f"{group.name}, L* = {_level(group.level)} %", np.array([group.level])
        base = [float(group.arms[group.trained[0]].mean(f"base_pass@{k}")) for k in (64, 8)]
        rows.append(row_of(BASE, *map(share_cell, map(bare, base)), section=section))
        for name in group.trained:
            values = [PER_CENT * group.arms[name].of_all_worlds(level, metric)[0] for metric in ("pass@64", "pass@8")]
            cells = (mean_cell(each, count=int(np.isfinite(each).sum())) for each in values)
            rows.append(row_of(arm_name(name), *cells, section=section))
    return Table(
        name="lab_passage",
        title="Where pass@1 first reaches L*, in per cent",
        columns=(*left("Arm"), *right("pass@64", "pass@8")),
        rows=tuple(rows),
        notes=(
            "Means over the runs that reach L*, ± standard error; in brackets, how many do. Evaluation points there "
            f"lie more than {WIDEST_GAP:.0%} of pass@1 apart, and between two a value is that of a straight line. "
            "The base model has its own pass@1.",
        ),
    )


def means_table(group: Group) -> Table:
    """Each arm at each level: mean over the runs that reach it, standard error and their number."""
    rows: list[TableRow] = []
    for metric in ("pass@64", "pass@8"):
        for name in group.arms:
            curves = group.arms[name].along(group.levels, metric)
            in_all = np.min([np.isfinite(each).any(1) for each in curves.values()], axis=0)
            cells = (
                mean_cell(PER_CENT * values, count=int(np.isfinite(values).sum()), marked=not is_everywhere)
                for values, is_everywhere in zip(np.concatenate([*curves.values()], axis=1), in_all, strict=True)
            )
            rows.append(row_of(arm_name(name), *cells, section=f"{metric} where pass@1 first reaches the level"))
    return Table(
        name=f"lab_levels_{group.name}",
        title=f"{EXPLORED}: pass@64 and pass@8 at equal pass@1, in per cent ({group.name})",
        columns=(*left("Arm"), *right(*map(_level, group.levels), group="pass@1 of")),
        rows=tuple(rows),
        notes=(
            "± standard error over the runs that reach the level; in brackets, how many do.",
            "†: no run of a world reaches it. A mean over the other worlds can rise where no run does.",
        ),
    )


def differences_table(group: Group) -> Table:
    """The difference of each pair at each level: with its band, in pass@8 too, and in each world."""
    rows: list[TableRow] = []
    for metric in ("pass@64", "pass@8"):
        for pair in group.pairs:
            levels, band = group.band(pair, metric)
            shown = np.isin(levels, group.levels)
            columns = (values[shown].tolist() for values in (band.mean, band.low, band.high))
            cells = (points_cell(Estimate(value=m, low=a, high=b)) for m, a, b in zip(*columns, strict=True))
            sides = (_side(levels, band, is_apart) for is_apart in (band.low > 0, band.high < 0))
            rows.append(row_of(pair_name(pair), *cells, *sides, section=metric))
    for world in group.worlds if len(group.worlds) > 1 else ():
        for pair in group.pairs:
            none = np.zeros((len(group.levels), 0))
            curves = [group.arms[name].along(group.levels).get(world, none) for name in pair]
            cells = (_world_cell(before, after) for before, after in zip(*curves, strict=True))
            rows.append(row_of(pair_name(pair), *cells, EMPTY, EMPTY, section=f"pass@64, {world}"))
    return Table(
        name=f"lab_level_differences_{group.name}",
        title=f"{EXPLORED}: differences at equal pass@1 [points] ({group.name})",
        columns=(
            *(*left("Difference"), *right(*map(_level, group.levels), group="pass@1 of")),
            *right("above 0", "below 0", group="Band"),
        ),
        rows=tuple(rows),
        notes=(
            "In brackets: a band over seeds that holds the whole curve, at all levels together, in 95 % of cases, for "
            "these worlds and problems. Band above and below 0: the levels of pass@1 at which it does not hold 0, and "
            "the largest difference there. In one world: how many runs of both arms reach the level.",
        ),
    )


def worlds_table(edition: Edition, found: Sequence[Group]) -> Table:
    """Where one strategy solves the most: its pass@1, and where each method loses pass@64."""
    rows = []
    for group in found:
        for world in (edition.protocol.worlds[name] for name in group.worlds):
            if world.family in OF_ONE_KIND:
                single = best_single_strategy(world)
                section = f"{world.name}, best single strategy {100 * single:.1f} %"
                rows += [_cliff_row(group.arms[name].within([world.name]), single, section) for name in group.trained]
    return Table(
        name="lab_worlds",
        title=f"{EXPLORED}: where methods commit themselves and lose pass@64, where one strategy solves the most",
        columns=(
            *left("Arm"),
            *right("step", "pass@1", group="Commits"),
            *right("pass@1", "share of the best single strategy", group="Cliff"),
            *right("Highest pass@1", "Runs above it"),
        ),
        rows=tuple(rows),
        notes=(
            "Means, from the lowest to the highest run. Commits: the entropy of its choice of a strategy first falls "
            "below 1 nat. Cliff: pass@64 first falls below 90 %. Runs for which that does not happen are left out. "
            "Best single strategy: pass@1 of a policy that answers every held-out problem with the one strategy that "
            "solves most of them. Runs above it: how many reach this pass@1.",
        ),
    )


def _world_cell(before: Float[NDArray[np.float64], "_"], after: Float[NDArray[np.float64], "_"]) -> Cell:
    runs = [100 * values[np.isfinite(values)] for values in (before, after)]
    if not all(map(len, runs)):
        return EMPTY
    difference = (runs[1].mean() - runs[0].mean()).item()
    return Cell(f"{difference:+.1f} ({len(runs[0])}, {len(runs[1])})", difference)


def _side(levels: Levels, band: Band, is_apart: Bool[NDArray[np.bool], "levels"]) -> Cell:
    """The stretches of levels where a band lies on one side of 0, and the largest difference there."""
    places = np.flatnonzero(is_apart)
    if not len(places):
        return EMPTY
    largest = places[np.abs(band.mean[places]).argmax()]
    stretches = [levels[each] for each in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)]
    ends = [dict.fromkeys(f"{100 * level:.1f}" for level in (each[0], each[-1])) for each in stretches]
    text = ", ".join(" to ".join(each) for each in ends)
    return Cell(f"{text} ({100 * band.mean[largest]:+.1f} at {100 * levels[largest]:.1f})")


def _cliff_row(arm: ArmRuns, single: float, section: str) -> TableRow:
    runs = [points for _, points in arm.by_run()]
    steps, ones = np.array([_fall(points, "strategy_entropy", COMMITTED) for points in runs]).T
    cliffs = np.array([_fall(points, "pass@64", LOST)[1] for points in runs])
    highest = np.array([points["pass@1"].max() for points in runs])
    return row_of(
        arm.label,
        *(_range(steps, 0), _range(100 * ones, 1), _range(100 * cliffs, 1), _range(cliffs / single, 2)),
        *(_range(100 * highest, 1), f"{(highest >= single).sum()} of {len(runs)}"),
        section=section,
    )


def _fall(points: Frame, metric: str, below: float) -> tuple[float, float]:
    """Step and pass@1 where a metric first falls to a value, between two points; NaN if it does not or begins below."""
    falling, steps, ones = (points[name].to_numpy(float) for name in (metric, "step", "pass@1"))
    if falling[0] < below:
        return np.nan, np.nan
    step, one = (at_levels(-falling, values, np.array([-below])).item() for values in (steps, ones))
    return step, one


def _range(values: np.ndarray, decimals: int) -> Cell:
    """The mean of the runs that have a value, with the lowest and the highest."""
    found = values[np.isfinite(values)]
    if not len(found):
        return EMPTY
    low, mean, high = (f"{each:.{decimals}f}" for each in (found.min(), found.mean(), found.max()))
    return Cell(f"{mean} ({low} to {high})" if len(found) > 1 else mean, float(found.mean()))


def _level(level: float) -> str:
    return f"{100 * level:.3g}"

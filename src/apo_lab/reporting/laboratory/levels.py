"""The runs of the stage `main` at equal pass@1, level by level: what no registered verdict shows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib import resources

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from omegaconf import OmegaConf

from apo_lab.editions.protocol import AVERAGED, World
from apo_lab.puzzles.locks import Locks
from apo_lab.reporting.laboratory.reading import MAIN, ArmRuns, Edition, arm_name
from apo_lab.statistics.levels import Band, Curves, at_levels, difference_band

EXPLORED = "Explored after the runs"
"""Begins the title of what was not registered: no verdict rests on it."""
FROM_L = (-0.11, -0.06, -0.03, -0.015, -0.005, 0.0, 0.01, 0.03, 0.06, 0.10)
"""The levels of the tables, as distances from L*: close together where cliffs are."""
LEAST_SHARE = 0.5
"""A level is in the tables if so many runs of some arm reach it in each world."""
SPACING = 0.0025
"""Of the levels that figures and bands have."""
WIDEST_GAP = 0.03
"""Of pass@1 between the evaluation points around a level, median over runs. Inside a wider one a value is that of a
straight line, and its spread between runs is too small."""
LOCKS = "locks"
"""The family of worlds that have a best single strategy."""
Levels = Float[NDArray[np.float64], "levels"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The arms in worlds that are shown as one and have one L*."""

    name: str
    worlds: tuple[str, ...]
    level: float
    """L*."""
    arms: Mapping[str, ArmRuns]
    """By name, averages included; those with runs."""
    _bands: dict[tuple[str, ...], tuple[Levels, Band]] = field(default_factory=dict)
    """(before, after, metric) → what `band` has computed: a page asks for it twice."""

    @property
    def trained(self) -> list[str]:
        """Names of the arms, without averages."""
        return [name for name in self.arms if not name.endswith(AVERAGED)]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(before, after): the first arm and each other one, then each arm and its average."""
        averaged = [(name, name + AVERAGED) for name in self.trained if name + AVERAGED in self.arms]
        return [*((self.trained[0], name) for name in self.trained[1:]), *averaged]

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
        shares = [np.min([np.isfinite(each).mean(1) for each in self.curves(n, found).values()], 0) for n in self.arms]
        return found[(np.max(shares, axis=0) >= LEAST_SHARE) & (found > self._base)]

    def curves(self, name: str, levels: Levels, metric: str = "pass@64") -> Curves:
        """A metric of each run of an arm at each level, by world; see `at_levels`."""
        found: dict[str, list[Levels]] = {world: [] for world in self.worlds}
        for key, points in self.arms[name].by_run():
            ones, values = (points[column].to_numpy(float) for column in ("pass@1", metric))
            found[key[0]].append(at_levels(ones, values, levels))
        return {world: np.stack(runs, axis=1) for world, runs in found.items() if runs}

    def band(self, pair: tuple[str, str], metric: str = "pass@64") -> tuple[Levels, Band]:
        """Levels, those of the tables and of `grid`, and the `difference_band` of a pair at them all together."""
        if (*pair, metric) not in self._bands:
            levels = np.unique(np.concatenate([self.levels, self.grid]))
            before, after = (self.curves(name, levels, metric) for name in pair)
            common = [world for world in self.worlds if world in before and world in after]
            band = difference_band({w: before[w] for w in common}, {w: after[w] for w in common})
            self._bands[*pair, metric] = levels, band
        return self._bands[*pair, metric]

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


@cache
def groups(edition: Edition) -> list[Group]:
    """The groups of worlds of the stage `main`; those of several L*, of one arm or that are not dense are left out."""
    stage = next((stage for stage in edition.protocol.stages if stage.name == MAIN), None)
    found = []
    for worlds, arms in edition.arms(stage).items() if stage else ():
        levels = {edition.protocol.worlds[world].level for world in worlds}
        if len(levels) == 1 and len(arms) > 1:
            by_name = {arm.name: arm for arm in arms}
            found.append(Group(name=edition.group_name(worlds), worlds=worlds, level=min(levels), arms=by_name))
    return [group for group in found if group.is_dense]


def pair_name(pair: tuple[str, str]) -> str:
    """`APO − GRPO`."""
    return f"{arm_name(pair[1])} − {arm_name(pair[0])}"


@cache  # tables and figures of a page ask for the same worlds
def best_single_strategy(world: World) -> float:
    """pass@1, over the held-out locks, of a policy that answers each of them with the strategy that opens most."""
    defaults = OmegaConf.create((resources.files("apo_lab") / "configs/data/locks.yaml").read_text())
    own = [override.removeprefix("data.") for override in world.run if override.startswith("data.")]
    settings = OmegaConf.merge(defaults, OmegaConf.from_dotlist(own))
    puzzle = Locks(secret=settings.puzzle.secret)
    problems = puzzle.problems(settings.num_validation, settings.seed, held_out=True)
    opened = [[puzzle.opens(problem, strategy) for strategy in range(len(puzzle.strategies))] for problem in problems]
    return torch.tensor(opened).double().mean(0).max().item()

"""The runs of the published editions at equal pass@1, and intervals over seeds or instances."""

import functools
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Float
from numpy.typing import NDArray
from scipy import stats

from apo_lab.editions.protocol import load_protocol
from apo_lab.reporting.levels import best_single_strategy
from apo_lab.reporting.reading import KEY, Edition, Frame, read_edition
from apo_lab.statistics.levels import at_levels
from apo_lightning.evaluation.records import Estimate
from apo_report.records import Cell
from apo_report.tables.cells import EMPTY
from benchmarks import ROOT

LAB = ROOT / "docs" / "lab"
STAGE = {"full": "main", "longer": "main", "cliff": "main", "branches": "locks", "recipe": "locks", "decoding": "main"}
"""Edition → its stage of methods with fresh seeds on locks."""
LEVEL = 0.345
"""The pass@1 that `branches` registered for locks."""
Values = Float[NDArray[np.float64], "values"]


@functools.cache
def edition(name: str) -> Edition:
    """The published tables of an edition; a test compares their registration with the protocol's."""
    registered = pd.read_csv(LAB / name / "runs.csv.gz", usecols=["registration"])["registration"].iloc[0]
    return read_edition(LAB / name, load_protocol(name), registered)


@functools.cache
def _curves(name: str) -> dict[tuple[object, ...], Frame]:
    return dict(iter(edition(name).curves.groupby([*KEY], sort=False)))


def curves(name: str, method: str, world: str, stage: str = "") -> Iterator[tuple[str, int, Frame]]:
    """Settings, seed and evaluation points of each run of a method in a stage, else that of `STAGE`."""
    runs = edition(name).runs
    own = runs[(runs["stage"] == (stage or STAGE[name])) & (runs["method"] == method) & (runs["world"] == world)]
    for key in own[[*KEY]].itertuples(index=False, name=None):
        yield key[2], key[3], _curves(name)[key]


def at(points: Frame, level: float, metric: str = "pass@64") -> float:
    """A metric of one run where pass@1 first reaches a level; NaN if it does not."""
    ones, values = (points[column].to_numpy(float) for column in ("pass@1", metric))
    return float(at_levels(ones, values, np.array([level]))[0])


@functools.cache
def passages(
    name: str, method: str, world: str, level: float = LEVEL, stage: str = "", metric: str = "pass@64"
) -> Frame:
    """`at` of each run: a series by seed."""
    return pd.Series({seed: at(points, level, metric) for _, seed, points in curves(name, method, world, stage)})


@functools.cache
def best_single(name: str, world: str) -> float:
    """The pass@1 of always giving the best single kind of answer."""
    return best_single_strategy(edition(name).protocol.worlds[world])


def interval(values: Sequence[float] | Values, confidence: float = 0.95) -> Estimate:
    """The mean and its t-interval over seeds or instances."""
    found = np.asarray(values, dtype=float)
    half = stats.t.ppf((1 + confidence) / 2, len(found) - 1) * stats.sem(found) if len(found) > 1 else np.nan
    return Estimate(value=found.mean(), low=found.mean() - half, high=found.mean() + half)


def p_value(values: Sequence[float] | Values) -> float:
    """Two-sided, of a mean of 0, by the t-test."""
    found = np.asarray(values, dtype=float)
    return float(2 * stats.t.sf(abs(found.mean()) / stats.sem(found), len(found) - 1))


def mean_cell(values: Frame, scale: float = 100.0, decimals: int = 1) -> Cell:
    """`88.0 ± 0.7 (10)`: mean, standard error and number of the runs that have a value."""
    found = scale * values.dropna()
    if not len(found):
        return EMPTY
    error = f" ± {found.sem():.{decimals}f}" if len(found) > 1 else ""
    return Cell(f"{found.mean():.{decimals}f}{error} ({len(found)})", float(found.mean()))


def reached(values: Frame) -> str:
    """`9 of 10`: the runs that have a value."""
    return f"{values.notna().sum()} of {len(values)}"

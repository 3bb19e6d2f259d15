"""Whether pass@64 and entropy come back in long runs, and whether pass@1 still rises: a row a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from apo_lab.reporting.laboratory.reading import KEY, ArmRuns, Edition, Frame
from apo_lab.reporting.records import Cell, Table, TableRow, bare, left, right, row_of
from apo_lab.reporting.tables.cells import number_cell, share_cell
from apo_lightning.evaluation.records import Estimate

STAGE = "long"
TAIL = 0.4
"""Share of the steps over which pass@1 is fitted."""
STEPS = 100
"""Unit of the slope."""
MEAN = "mean"
"""Name of the row of an arm's means."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRun:
    """One run after its first passage of L*, or as a whole if it does not reach it."""

    name: str
    has_passed: bool
    lowest_pass: float
    last_pass: float
    """pass@64, at its lowest after first passage and at the last step."""
    lowest_entropy: float
    last_entropy: float
    """Entropy of the choice of a strategy [nats]."""
    last_pass_1: float
    """pass@1 at the last step."""
    slope: float
    """Of pass@1 over the last two fifths of the steps [per 100 steps]."""


def long_runs(arm: ArmRuns) -> list[LongRun]:
    """The runs of an arm, by world and seed."""
    return [_long_run(f"{key[0]}, seed {key[-1]}", points) for key, points in arm.curves.groupby([*KEY])]


def long_table(edition: Edition) -> Table:
    """A row a run, and a row of means for each arm."""
    rows = []
    for arms in edition.arms(edition.protocol.stage(STAGE)).values():
        for arm in arms:
            found = long_runs(arm)
            rows += [_row(Cell(run.name, marked=not run.has_passed), [run], arm.label) for run in found]
            rows.append(_row(Cell(MEAN), found, arm.label))
    return Table(
        name="lab_long",
        title="Long runs: does collapse reverse, and has training converged?",
        columns=(
            *left("Run"),
            *right("lowest", "last", group="pass@64"),
            *right("lowest", "last", group="Entropy [nats]"),
            *right("last", f"slope [points per {STEPS} steps]", group="pass@1"),
        ),
        rows=tuple(rows),
        notes=(
            "Lowest: after the first passage of L*. It is below the last value by chance alone, so a small difference "
            "is no reversal. Slope: least squares over the last two fifths of the steps; ±: standard error over runs.",
            "Marked: the run does not reach L*, and its lowest values are those of the whole run.",
        ),
    )


def _long_run(name: str, points: Frame) -> LongRun:
    reached = (points["pass@1"] >= points["level"]).to_numpy()
    after = points[reached.cumsum() > 0] if reached.any() else points
    tail = points[points["step"] >= (1 - TAIL) * points["step"].max()]
    slope = np.polyfit(tail["step"], tail["pass@1"], 1)[0] if len(tail) > 1 else math.nan
    return LongRun(
        name=name,
        has_passed=bool(reached.any()),
        lowest_pass=after["pass@64"].min(),
        last_pass=points["pass@64"].iloc[-1],
        lowest_entropy=after["strategy_entropy"].min(),
        last_entropy=points["strategy_entropy"].iloc[-1],
        last_pass_1=points["pass@1"].iloc[-1],
        slope=float(slope) * STEPS,
    )


def _row(name: Cell, runs: Sequence[LongRun], section: str) -> TableRow:
    """The means of these runs, with the slope's standard error if they are several."""

    def mean(name: str) -> Estimate:
        return bare(fmean(getattr(run, name) for run in runs))

    slopes = [100 * run.slope for run in runs]
    slope, error = fmean(slopes), f" ± {stdev(slopes) / math.sqrt(len(slopes)):.2f}" if len(slopes) > 1 else ""
    return row_of(
        name,
        *(share_cell(mean(key)) for key in ("lowest_pass", "last_pass")),
        *(number_cell(mean(key)) for key in ("lowest_entropy", "last_entropy")),
        share_cell(mean("last_pass_1")),
        Cell(f"{slope:+z.2f}{error}", slope),
        section=section,
    )

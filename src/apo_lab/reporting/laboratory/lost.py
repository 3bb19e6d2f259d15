"""Where pass@64 is lost at equal pass@1: entrances or skills, method by method."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.editions.protocol import AVERAGED, AVERAGED_PARTS, averages_of
from apo_lab.reporting.figures.canvas import NamedFigure, draw_mean, panels, styled, ticks_in_per_cent
from apo_lab.reporting.laboratory.levels import EVERY, Group, groups
from apo_lab.reporting.laboratory.reading import ArmRuns, Edition, Values
from apo_lab.reporting.records import Cell, Table, TableRow, left, right, row_of
from apo_lab.reporting.style import QUIET
from apo_lab.reporting.tables.cells import EMPTY, PER_CENT, mean_cell

PARTS_OF_CHANGE = {"locked": "#c8401f", "forgotten": "#0b4f9e", "opened": "#e69f00", "learnt": "#0a8f6a"}
"""The columns of the change of pass@64, with the colours of their lines."""
METRICS = ("pass@64", *PARTS_OF_CHANGE, "entered@64", "forced_pass@1")
SCALES = {"step": (1.0, 0), "entered@64": (1.0, 2)}
"""Metric → its scale and decimals, where these are not those of a share in per cent."""


def lost_tables(edition: Edition) -> list[Table]:
    """A table for each group of worlds whose runs have entrances measured."""
    return [lost_table(edition, group) for group in groups(edition) if _is_measured(group)]


def lost_table(edition: Edition, group: Group) -> Table:
    """Each arm and each average where pass@1 first reaches L*: the parts of its change of pass@64."""
    rows: list[TableRow] = []
    for arm in _arms(edition, group):
        level = np.array([group.level])
        reached = {name: arm.of_all_worlds(level, name)[0] for name in METRICS}
        count = f"{np.isfinite(reached['pass@64']).sum()} of {arm.num_planned}"
        cells = [metric_cell(name, values) for name, values in reached.items()]
        is_average = AVERAGED in arm.name
        step = EMPTY if is_average else metric_cell("step", arm.of_all_worlds(level, "step")[0])
        section = "Averages of the last policy with the base model" if is_average else "Training"
        rows.append(row_of(arm.label, count, step, *cells, section=section))
    return Table(
        name=f"lab_lost_{group.name}",
        title=f"Where pass@64 is lost: at a pass@1 of {100 * group.level:.3g} % ({group.name})",
        columns=(
            *left("Arm"),
            *right("Runs", "Step", "pass@64 [%]"),
            *right(*PARTS_OF_CHANGE, group="Change of pass@64 from the base model [points]"),
            *right("Entrances entered", "Forced pass@1 [%]"),
        ),
        rows=tuple(sorted(rows, key=lambda row: row.section != "Training")),
        notes=(
            "± standard error over the runs that reach this pass@1. Locked and opened: what falls and rises of the "
            "probability of entrances took and brought; forgotten and learnt: the same of the pass@1 behind them. The "
            "four sum to the change. Entrances entered: the mean number of a problem's entrances that 64 samples take.",
        ),
    )


def lost_figures(edition: Edition) -> Iterator[NamedFigure]:
    """For each group of worlds: the parts of the change along training."""
    for group in (group for group in groups(edition) if _is_measured(group)):
        by_name = {arm.name: arm for arm in _arms(edition, group)}
        averaged = [name for name in group.trained if f"{name}{AVERAGED}_{AVERAGED_PARTS[0]}" in by_name]
        yield NamedFigure(
            f"lab_lost_{group.name}",
            f"Where pass@64 is lost along training ({group.name})",
            "Change of pass@64 from the base model where pass@1 first reaches a level, as the sum of four parts: means "
            "over the runs that reach it, as far as half of them do; dotted where one does not. Upright line: L*.",
            parts_figure({name: by_name[name] for name in averaged or group.trained[:2]}, group),
        )


@styled
def parts_figure(arms: Mapping[str, ArmRuns], group: Group) -> Figure:
    """A panel an arm: the four parts of the change of pass@64 over pass@1."""
    figure, grid = panels(len(arms), height=2.4, most_columns=3)
    levels = group.grid[::EVERY]
    for axes, arm in zip(grid, arms.values(), strict=True):
        for name, color in PARTS_OF_CHANGE.items():
            curves = arm.of_all_worlds(levels, name)
            is_common = np.isfinite(curves).mean(1) >= 0.5
            draw_mean(axes, levels[is_common], curves[is_common], color=color, label=name)
        axes.axhline(0, color=QUIET, linewidth=0.6, zorder=1)
        axes.set_title(arm.label)
    return framed(figure, grid, group.level, "change of pass@64 [points]", len(PARTS_OF_CHANGE), unit="")


def _is_measured(group: Group) -> bool:
    curves = next(iter(group.arms.values())).curves
    return "locked" in curves and bool(curves["locked"].notna().any())


def _arms(edition: Edition, group: Group) -> list[ArmRuns]:
    """The arms of a group, with the averages of parts."""
    names = [name for own in group.trained for name in (own, *averages_of(own, AVERAGED_PARTS))]
    return [arm for name in names if len((arm := edition.arm(group.stage, group.worlds, name)).runs)]


def metric_cell(metric: str, values: Values) -> Cell:
    """Mean ± standard error of the runs that have a value."""
    scale, decimals = SCALES.get(metric, (PER_CENT, 1))
    return mean_cell(scale * values, decimals=decimals)


def framed(
    figure: Figure, grid: Sequence[Axes], level: float, what: str, most_columns: int, *, unit: str = "%"
) -> Figure:
    """The panels with the same scales of `what` and pass@1, the line of L* and one legend."""
    left_ends, right_ends = zip(*(axes.get_xlim() for axes in grid), strict=True)
    low_ends, high_ends = zip(*(axes.get_ylim() for axes in grid), strict=True)
    for axes in grid:
        axes.axvline(level, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        axes.set_xlim(min(left_ends), max(right_ends))
        axes.set_ylim(min(low_ends), max(high_ends))
        axes.set_xlabel("pass@1")
        ticks_in_per_cent(axes.xaxis)
        ticks_in_per_cent(axes.yaxis, unit=unit)
    grid[0].set_ylabel(what)
    num_columns = most_columns if len(grid) > 1 else 2
    figure.legend(*grid[0].get_legend_handles_labels(), loc="outside lower center", ncols=num_columns)
    return figure

"""Where pass@64 is lost: entrances or skills at equal pass@1, method by method; and which layers carry the loss."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from apo_lab.editions.protocol import AVERAGED, AVERAGED_PARTS, averages_of
from apo_lab.reporting.levels import EVERY, EXPLORED, Group, groups
from apo_lab.reporting.reading import ArmRuns, Edition, Frame, Values, along, arm_name
from apo_report.figures.canvas import NamedFigure, draw_mean, panels, styled, ticks_in_per_cent
from apo_report.records import Cell, Table, TableRow, left, right, row_of
from apo_report.style import QUIET
from apo_report.tables.cells import EMPTY, PER_CENT, mean_cell

PARTS_OF_CHANGE = {"locked": "#c8401f", "forgotten": "#0b4f9e", "opened": "#e69f00", "learnt": "#0a8f6a"}
"""The columns of the change of pass@64, with the colours of their lines."""
METRICS = ("pass@64", *PARTS_OF_CHANGE, "entered@64", "forced_pass@1")
SCALES = {"step": (1.0, 0), "entered@64": (1.0, 2)}
"""Metric → its scale and decimals, where these are not those of a share in per cent."""
PARTS = {
    "all": ("all weights", "#1f2328"),
    "first": ("first third", "#0a8f6a"),
    "middle": ("middle third", "#e69f00"),
    "last": ("last third", "#c8401f"),
    "outside": ("embeddings, head", "#5b3a8c"),
}
"""Part of the model → its printed name and the colour of its line."""
SHOWN_WEIGHTS = (0.5, 1.0)
"""Of the base model, in these tables."""
SHOWN = ("pass@1", "pass@64", "entered@64", "forced_pass@1")
"""The metrics of the tables of averages of a part."""
Arms = Mapping[str, ArmRuns]


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


def layers_tables(edition: Edition) -> list[Table]:
    """A table for each group of worlds with averages of parts of the model."""
    return [_layers_table(name, methods, arms) for name, methods, arms, _ in _averaged(edition)]


def layers_figures(edition: Edition) -> Iterator[NamedFigure]:
    """A figure for each group of worlds with averages of parts of the model."""
    for name, methods, arms, level in _averaged(edition):
        yield NamedFigure(
            f"lab_layers_{name}",
            f"Averages of a part of the model with its base ({name})",
            "Lines go from the last policy (marker) to the base model's weights in that part. Grey: training, "
            "from the base model (cross). Means over runs; upright line: L*.",
            layers_figure(methods, arms, level),
        )


@styled
def layers_figure(methods: Sequence[str], arms: Arms, level: float) -> Figure:
    """A panel a method: its path of training, and the paths of averages of its last policy, part by part."""
    figure, grid = panels(len(methods), height=2.6, most_columns=2)
    for axes, method in zip(grid, methods, strict=True):
        trained = arms[method].path
        axes.plot(trained["pass@1"], trained["pass@64"], color=QUIET, linewidth=1.0, label="training")
        for (label, color), average in zip(PARTS.values(), averages_of(method, AVERAGED_PARTS), strict=True):
            path = arms[average].path
            axes.plot(path["pass@1"], path["pass@64"], color=color, marker=".", label=label)
        for point, marker in ((trained.iloc[0], "X"), (trained.iloc[-1], "s")):
            axes.plot(point["pass@1"], point["pass@64"], marker, color=QUIET, zorder=40)
        axes.set_title(arm_name(method))
    return framed(figure, grid, level, "pass@64", 3)


def _averaged(edition: Edition) -> Iterator[tuple[str, list[str], Arms, float]]:
    """Name, methods with averages by part, arms by name and L* of each group of worlds that has any."""
    for stage in edition.protocol.stages:
        for worlds in edition.groups(stage) if stage.averaged_by_part else ():
            names = [name for own in stage.averaged_by_part for name in (own, *averages_of(own, AVERAGED_PARTS))]
            arms = {name: edition.arm(stage, worlds, name) for name in names}
            methods = [own for own in stage.averaged_by_part if len(arms[own].runs)]
            if methods:
                yield edition.group_name(worlds), methods, arms, edition.protocol.worlds[worlds[0]].level


def _layers_table(name: str, methods: Sequence[str], arms: Arms) -> Table:
    rows: list[TableRow] = []
    for method in methods:
        of_all = {(key[0], key[-1]): points for key, points in arms[method + AVERAGED].by_run()}
        rows.append(_layers_row(f"{arm_name(method)}, last policy", "–", arms[method + AVERAGED], 0.0, of_all))
        for part in AVERAGED_PARTS:
            average = arms[f"{method}{AVERAGED}_{part}"]
            rows += [_layers_row(PARTS[part][0], f"{weight:g}", average, weight, of_all) for weight in SHOWN_WEIGHTS]
    return Table(
        name=f"lab_layers_{name}",
        title=f"{EXPLORED}: the last policy with a part of its weights averaged with the base model's ({name})",
        columns=(
            *left("Averaged"),
            *right("Weight of the base model", "pass@1 [%]", "pass@64 [%]", "Entrances entered", "Forced pass@1 [%]"),
            *right("Above the average of all weights at this pass@1 [points of pass@64]"),
        ),
        rows=tuple(rows),
        notes=(
            "± standard error over runs. Last column: run by run, pass@64 minus that of the same policy averaged in "
            "all weights, where these averages first reach the same pass@1; in brackets, in how many runs they do.",
        ),
    )


def _layers_row(
    label: str, shown: str, arm: ArmRuns, weight: float, of_all: Mapping[tuple[str, ...], Frame]
) -> TableRow:
    """The runs of an arm at one weight of the base model."""
    points = arm.curves[np.isclose(arm.curves["base_weight"], weight)]
    cells = [metric_cell(name, points[name].to_numpy(float)) for name in SHOWN]
    columns = points[["world", "seed", "pass@1", "pass@64"]].itertuples(index=False)
    above = np.array([many - along(of_all[world, seed], np.array([one])).item() for world, seed, one, many in columns])
    num_reached = int(np.isfinite(above).sum())
    is_told = weight and num_reached > 1
    return row_of(
        label, shown, *cells, mean_cell(PER_CENT * above, signed=True, count=num_reached) if is_told else EMPTY
    )


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

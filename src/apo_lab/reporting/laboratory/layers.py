"""Which layers carry the loss: averages of one part of the last policy's weights with the base model's."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from apo_lab.editions.protocol import AVERAGED, AVERAGED_PARTS, averages_of
from apo_lab.reporting.figures.canvas import NamedFigure, panels, styled
from apo_lab.reporting.laboratory.levels import EXPLORED
from apo_lab.reporting.laboratory.lost import framed, metric_cell
from apo_lab.reporting.laboratory.reading import ArmRuns, Edition, Frame, along, arm_name
from apo_lab.reporting.records import Table, TableRow, left, right, row_of
from apo_lab.reporting.style import QUIET
from apo_lab.reporting.tables.cells import EMPTY, PER_CENT, mean_cell

PARTS = {
    "all": ("all weights", "#1f2328"),
    "first": ("first third", "#0a8f6a"),
    "middle": ("middle third", "#e69f00"),
    "last": ("last third", "#c8401f"),
    "outside": ("embeddings, head", "#5b3a8c"),
}
"""Part of the model → its printed name and the colour of its line."""
SHOWN_WEIGHTS = (0.5, 1.0)
"""Of the base model, in the tables."""
SHOWN = ("pass@1", "pass@64", "entered@64", "forced_pass@1")
"""The metrics of the tables."""
Arms = Mapping[str, ArmRuns]


def layers_tables(edition: Edition) -> list[Table]:
    """A table for each group of worlds with averages of parts of the model."""
    return [_table(name, methods, arms) for name, methods, arms, _ in _averaged(edition)]


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


def _table(name: str, methods: Sequence[str], arms: Arms) -> Table:
    rows: list[TableRow] = []
    for method in methods:
        of_all = {(key[0], key[-1]): points for key, points in arms[method + AVERAGED].by_run()}
        rows.append(_row(f"{arm_name(method)}, last policy", "–", arms[method + AVERAGED], 0.0, of_all))
        for part in AVERAGED_PARTS:
            average = arms[f"{method}{AVERAGED}_{part}"]
            rows += [_row(PARTS[part][0], f"{weight:g}", average, weight, of_all) for weight in SHOWN_WEIGHTS]
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


def _row(label: str, shown: str, arm: ArmRuns, weight: float, of_all: Mapping[tuple[str, ...], Frame]) -> TableRow:
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

"""APO's coefficients, one at a time: a table and a figure over K, β and λ."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from apo_lab.reporting.figures.canvas import panels, styled
from apo_lab.reporting.laboratory.reading import REVIVAL, LabRun, by_puzzle, pass_table
from apo_lab.reporting.laboratory.statistics import mean_of
from apo_lab.reporting.names import axis_name
from apo_lab.reporting.records import Cell, Table, left, right, row_of
from apo_lab.reporting.style import QUIET, Style
from apo_lab.reporting.tables.cells import share_cell

AXES = ("anchor_size", "pull_coef", "push_coef")
Sweep = Mapping[str, Sequence[tuple[float, Sequence[LabRun]]]]
"""Axis → its values, ascending, each with its runs."""


def sweep_of(runs: Sequence[LabRun], puzzle: str) -> Sweep:
    """Runs whose loss differs from APO's in one axis alone, by their configurations; axes of one value left out."""
    members = [run for run in runs if run.puzzle == puzzle and not run.method.startswith(REVIVAL)]
    default = next((run.loss for run in members if run.method == "apo"), None)
    if default is None:
        return {}
    found: dict[str, dict[float, list[LabRun]]] = {axis: {} for axis in AXES}
    for run in members:
        others = {key for key in default.keys() | run.loss.keys() if default.get(key) != run.loss.get(key)}
        for axis in AXES:
            if others <= {axis}:
                found[axis].setdefault(float(run.loss[axis]), []).append(run)
    return {axis: sorted(values.items()) for axis, values in found.items() if len(values) > 1}


def sweep_table(runs: Sequence[LabRun]) -> Table:
    """pass@k at the last step, by value."""
    rows = [
        row_of(
            Cell(f"{axis_name(f'algo.loss.{axis}')} = {value:g}", value),
            str(len(members)),
            *(share_cell(mean_of(pass_table(members, k))) for k in (1, 8, 64)),
            section=f"{puzzle}, {axis_name(f'algo.loss.{axis}')}",
            highlight=any(run.method == "apo" for run in members),
        )
        for puzzle in by_puzzle(runs)
        for axis, values in sweep_of(runs, puzzle).items()
        for value, members in values
    ]
    return Table(
        name="lab_sweep",
        title="APO with one coefficient changed, in per cent",
        columns=(*left("Value"), *right("Seeds", "pass@1", "pass@8", "pass@64")),
        rows=tuple(rows),
        notes=("At the last step.",),
    )


@styled
def sweep_figure(sweep: Sweep, grpo: Sequence[LabRun], style: Style) -> Figure:
    """pass@64 (filled) and pass@1 (open) at the last step against each coefficient; a mark a seed, a line of means."""
    figure, grid = panels(len(sweep), height=1.9)
    for axes, (axis, values) in zip(grid, sweep.items(), strict=True):
        for k, fill in ((64, style.color), (1, "white")):
            marks = [[run.points[-1][f"pass@{k}"] for run in members] for _, members in values]
            for x, column in enumerate(marks):
                axes.plot([x] * len(column), column, style.marker, color=style.color, markerfacecolor=fill)
            axes.plot(range(len(marks)), [sum(column) / len(column) for column in marks], color=style.color)
            if grpo:
                level = sum(run.points[-1][f"pass@{k}"] for run in grpo) / len(grpo)
                axes.axhline(level, color=QUIET, linewidth=1.0, linestyle=":")
        axes.set_xticks(range(len(values)), [f"{value:g}" for value, _ in values])
        axes.set_xlabel(axis_name(f"algo.loss.{axis}"))
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    grid[0].set_ylabel("pass@64 (filled), pass@1 (open)")
    return figure

"""pass@64 at L* under each decoding of each arm: means over instances, and every instance alone."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from apo_lab.editions.protocol import ALIKE, AVERAGED, DECODED, SPLIT, Stage
from apo_lab.reporting.reading import DECODED_NAMES, ArmRuns, Edition, arm_name
from apo_report.figures.canvas import NamedFigure, panels, styled, ticks_in_per_cent
from apo_report.records import Cell, Table, TableRow, left, right, row_of
from apo_report.style import QUIET
from apo_report.tables.cells import PER_CENT, mean_cell, standard_error

DRAWN = {"": "#1f2328", "+temperature": "#8c8c8c", "+first_mixture": "#e69f00", AVERAGED: "#0a8f6a", SPLIT: "#c8401f"}
"""Decodings of the figure, with their colours."""


def decodings_tables(edition: Edition) -> Iterator[Table]:
    """For each stage with decodings: the means over its worlds, and the worlds alone."""
    for stage, worlds in _decoded(edition):
        yield _means_table(edition, stage, worlds)
        yield _worlds_table(edition, stage, worlds)


def decodings_figures(edition: Edition) -> Iterator[NamedFigure]:
    """For each stage with decodings: a row an arm."""
    for stage, worlds in _decoded(edition):
        yield NamedFigure(
            f"lab_decodings_{stage.name}",
            "pass@64 where pass@1 first reaches L*, by decoding",
            "Means over worlds of the means over runs that reach L*; line: ± standard error over worlds. Hollow: in "
            "some world no run reaches L*.",
            decodings_figure(edition, stage, worlds),
        )


@styled
def decodings_figure(edition: Edition, stage: Stage, worlds: Sequence[str]) -> Figure:
    """A row an arm, a marker a decoding."""
    arms = [*stage.methods, *stage.arms]
    figure, (axes,) = panels(1, height=0.5 * len(arms) + 0.6)
    for place, (after, color) in enumerate(DRAWN.items()):
        for row, name in enumerate(arms):
            means = _by_world(edition.arm(stage, worlds, name + after))
            if len(means):
                shift = 0.12 * (place - (len(DRAWN) - 1) / 2)
                fill = color if len(means) == len(worlds) else "white"
                axes.errorbar(
                    np.mean(means),
                    row + shift,
                    xerr=standard_error(means),
                    fmt="o",
                    markersize=4,
                    color=color,
                    markerfacecolor=fill,
                    label=DECODED_NAMES[after] if row == 0 else None,
                )
    axes.set_yticks(range(len(arms)), [arm_name(name) for name in arms])
    axes.invert_yaxis()
    axes.grid(axis="x", color=QUIET, linewidth=0.3)
    axes.set_xlabel("pass@64 at L*")
    ticks_in_per_cent(axes.xaxis)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=1)
    return figure


def _decoded(edition: Edition) -> Iterator[tuple[Stage, Sequence[str]]]:
    for stage in edition.protocol.stages:
        if stage.is_decoded and edition.num_done(stage):
            yield stage, tuple(stage.seeds)


def _by_world(arm: ArmRuns) -> np.ndarray:
    """The means over runs that reach L*, of each world that has any."""
    return arm.runs.dropna(subset=["passage"]).groupby("world")["passage"].mean().to_numpy(float)


def _cell(arm: ArmRuns, num_worlds: int) -> Cell:
    means = _by_world(arm)
    return mean_cell(PER_CENT * means, count=int(arm.runs["passage"].notna().sum()), marked=len(means) < num_worlds)


def _means_table(edition: Edition, stage: Stage, worlds: Sequence[str]) -> Table:
    rows = [
        row_of(
            arm_name(name), *(_cell(edition.arm(stage, worlds, name + after), len(worlds)) for after in DECODED_NAMES)
        )
        for name in (*stage.methods, *stage.arms)
    ]
    return Table(
        name=f"lab_decodings_{stage.name}",
        title="pass@64 where pass@1 first reaches L*, by decoding, in per cent",
        columns=(*left("Arm"), *right(*DECODED_NAMES.values())),
        rows=tuple(rows),
        notes=(
            "Means over worlds of means over runs; ± standard error over worlds; in brackets, how many runs reach L*. "
            "“None” and “half of the samples” go along training, the others through settings of the last "
            "policy. With half of the samples from the base model, pass@1 is that of the policy's own samples, so the "
            "mean reward of all 64 is lower. The best is taken in each run, and is too high by chance in each arm.",
            "†: in some world no run reaches L*.",
        ),
    )


def _worlds_table(edition: Edition, stage: Stage, worlds: Sequence[str]) -> Table:
    rows: list[TableRow] = []
    for after in ("", ALIKE, DECODED):
        for name in (*stage.methods, *stage.arms):
            alone = (edition.arm(stage, (world,), name + after) for world in worlds)
            rows.append(row_of(arm_name(name), *(_cell(arm, 1) for arm in alone), section=DECODED_NAMES[after]))
    return Table(
        name=f"lab_decodings_{stage.name}_worlds",
        title="The same in each world, in per cent",
        columns=(*left("Arm"), *right(*worlds)),
        rows=tuple(rows),
        notes=("In brackets, how many runs reach L*.",),
    )

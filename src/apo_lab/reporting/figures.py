"""The laboratory's figures: paths through the plane of pass@1 and pass@64, and level by level."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from apo_lab.editions.protocol import AVERAGED, OF_ENTRANCES, Question, World, method_of
from apo_lab.reporting.decodings import decodings_figures
from apo_lab.reporting.levels import (
    EVERY,
    EXPLORED,
    LOST,
    OF_ONE_KIND,
    Group,
    best_single_strategy,
    drawn_groups,
    sparse_groups,
)
from apo_lab.reporting.lost import layers_figures, lost_figures
from apo_lab.reporting.reading import ArmRuns, Edition, arm_name
from apo_report.figures.canvas import (
    DOTTED,
    NamedFigure,
    draw_mean,
    method_legend,
    panels,
    styled,
    ticks_in_per_cent,
)
from apo_report.names import BASE
from apo_report.style import QUIET, Style, styles_of

NEWEST, OTHERS = {"linewidth": 1.8, "zorder": 18}, {"linewidth": 0.8, "alpha": 0.6}
"""Looks of the arm that a panel is about, and of those that it is compared with."""
Styles = Mapping[str, Style]


def laboratory_figures(edition: Edition) -> list[NamedFigure]:
    """Level by level and where it is lost, then a figure of paths for each question about pass@64 that has runs."""
    styles = _styles(edition)
    by_level = [_of_group(group, edition.protocol.worlds, styles) for group in drawn_groups(edition)]
    of_questions = [_of_question(edition, question, styles) for question in edition.protocol.questions]
    lost = [*decodings_figures(edition), *lost_figures(edition), *layers_figures(edition)]
    return [*by_level, *_of_single_runs(edition, styles), *lost, *(figure for figure in of_questions if figure)]


def _of_group(group: Group, worlds: Mapping[str, World], styles: Styles) -> NamedFigure:
    has_single = any(worlds[world].family in OF_ONE_KIND for world in group.worlds)
    single = " Dotted upright line: pass@1 of the best single strategy." if has_single else ""
    return NamedFigure(
        f"lab_levels_{group.name}",
        f"{EXPLORED}: pass@64 where pass@1 first reaches a level ({group.name})",
        f"Means over the runs of a method that reach the level; dotted where one of its runs does not.{single}",
        worlds_figure(group, worlds, styles),
    )


@styled
def worlds_figure(group: Group, worlds: Mapping[str, World], styles: Styles) -> Figure:
    """A panel a world: each arm's mean over its runs at each level, dotted where a run does not reach the level."""
    figure, grid = panels(len(group.worlds), height=2.3 if len(group.worlds) > 1 else 2.9, most_columns=2)
    levels = group.grid[::EVERY]
    for axes, world in zip(grid, group.worlds, strict=True):
        if worlds[world].family in OF_ONE_KIND:
            single = best_single_strategy(worlds[world])
            axes.axvline(single, color=QUIET, linewidth=0.8, linestyle=(0, DOTTED), zorder=1)
        for name in group.trained:
            curves = group.arms[name].along(levels).get(world)
            if curves is not None:
                style = styles[arm_name(name)]
                look = {"color": style.color, "linewidth": 1.2, "zorder": 2 + style.rank}
                draw_mean(axes, levels, curves, marker=style.marker, **look)
        axes.set_title(world)
        axes.set_xlabel("pass@1")
        ticks_in_per_cent(axes.xaxis, axes.yaxis)
    grid[0].set_ylabel("pass@64")
    solid = {label: replace(style, dash=()) for label, style in styles.items()}
    method_legend(figure, solid, [arm_name(name) for name in group.trained], most_columns=4 if len(grid) > 1 else 2)
    return figure


def _of_single_runs(edition: Edition, styles: Styles) -> list[NamedFigure]:
    """Each run by itself where its points are too few for a mean at a level, and no step is the last of all."""
    shown = [
        (group, world)
        for group in sparse_groups(edition)
        for world in group.worlds
        if edition.protocol.worlds[world].family in OF_ONE_KIND
    ]
    if not shown:
        return []
    return [
        NamedFigure(
            f"lab_runs_{shown[0][0].stage.name}",
            f"{EXPLORED}: every run, from the base model to its last step",
            "A line a run, a marker an evaluation. pass@1 is a share of that of the best single strategy, which the "
            f"panel names. Dotted: L*, and pass@64 of {LOST:.0%}.",
            runs_figure(shown, edition.protocol.worlds, styles),
        )
    ]


@styled
def runs_figure(shown: Sequence[tuple[Group, str]], worlds: Mapping[str, World], styles: Styles) -> Figure:
    """A panel a world: pass@64 of each run against its pass@1, as a share of the best single strategy's."""
    figure, grid = panels(len(shown), height=2.3, most_columns=2)
    for axes, (group, world) in zip(grid, shown, strict=True):
        single = best_single_strategy(worlds[world])
        dotted = {"color": QUIET, "linewidth": 0.8, "linestyle": (0, DOTTED), "zorder": 1}
        axes.axvline(worlds[world].level / single, **dotted)
        axes.axhline(LOST, **dotted)
        for name in group.trained:
            style = styles[arm_name(name)]
            look = {"color": style.color, "linewidth": 0.7, "markersize": 3, "zorder": 2 + style.rank}
            for _, points in group.arms[name].within([world]).by_run():
                axes.plot(points["pass@1"] / single, points["pass@64"], marker=style.marker, **look)
        axes.set_title(f"{world}: {single:.1%}")
        axes.set_xlabel("pass@1 ÷ best single strategy's")
        ticks_in_per_cent(axes.yaxis)
    grid[0].set_ylabel("pass@64")
    solid = {label: replace(style, dash=()) for label, style in styles.items()}
    method_legend(figure, solid, {arm_name(name) for group, _ in shown for name in group.trained}, most_columns=4)
    return figure


@styled
def paths_figure(
    pairs: Sequence[tuple[str, str]], arms: Mapping[str, ArmRuns], worlds: Sequence[World], styles: Styles
) -> Figure:
    """pass@64 against pass@1 along each arm's mean path; a panel for each second arm if the first ones differ."""
    shown = [list(arms)]
    if len({before for before, _ in pairs}) > 1:
        afters = dict.fromkeys(after for _, after in pairs if after in arms)
        shown = [[*(b for b, a in pairs if a == after and b in arms), after] for after in afters]
    figure, grid = panels(len(shown), height=2.9 if len(shown) == 1 else 2.1, most_columns=3 if len(shown) > 4 else 2)
    for axes, names in zip(grid, shown, strict=True):
        for level in {world.level for world in worlds}:
            axes.axvline(level, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        for name in names:
            look = {} if len(shown) == 1 else NEWEST if name == names[-1] else OTHERS
            _draw_path(axes, arms[name], styles[arms[name].label], look)
        start = arms[names[0]].path.iloc[0]
        axes.plot(start["pass@1"], start["pass@64"], "X", color=styles[BASE].color, zorder=40)
        if len(shown) > 1:
            axes.set_title(arm_name(method_of(names[-1])))
        axes.set_xlabel("pass@1")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        ticks_in_per_cent(axes.xaxis, axes.yaxis)
    grid[0].set_ylabel("pass@64")
    labels = [BASE, *(arm.label for name, arm in arms.items() if name == method_of(name))]
    method_legend(figure, styles, labels, most_columns=2 if len(shown) == 1 else 4)
    return figure


def _of_question(edition: Edition, question: Question, styles: Styles) -> NamedFigure | None:
    stage = edition.protocol.stage(question.stage)
    names = dict.fromkeys(itertools.chain(*question.pairs))
    if question.endpoint in OF_ENTRANCES or any(name not in (m := method_of(name), m + AVERAGED) for name in names):
        return None  # `lost_figures`, `layers_figures` and `decodings_figures` draw these
    arms = {name: arm for name in names if len((arm := edition.arm(stage, question.worlds, name)).runs)}
    if not any(after in arms for _, after in question.pairs):
        return None
    is_averaged = any(name != method_of(name) for name in arms)
    dots = " Dotted: averages of the last policy with the base model." if is_averaged else ""
    worlds = [edition.protocol.worlds[name] for name in question.worlds]
    if not edition.ends_at_a_step(stage):
        return None  # no mean by step is one over all runs: `_of_group` and `_of_single_runs` draw these
    return NamedFigure(
        f"lab_{question.key}",
        f"{question.text} ({edition.group_name(question.worlds)})",
        f"Mean path of each arm from the base model (cross) to its last step (marker).{dots} Upright line: L*.",
        paths_figure(question.pairs, arms, worlds, styles),
    )


def _draw_path(axes: Axes, arm: ArmRuns, style: Style, look: Mapping[str, float]) -> None:
    order = {"linewidth": 1.4, "zorder": 2 + style.rank, **look}
    last = len(arm.path) - 1
    drawn = arm.path.iloc[sorted({0, *range(last, -1, -EVERY)})]  # with the base model and the last policy
    axes.plot(drawn["pass@1"], drawn["pass@64"], **style.line, **order)
    if arm.name == method_of(arm.name):  # an average's path ends at the last policy, which has its marker
        end, front = arm.path.iloc[-1], 20 + look.get("zorder", style.rank)
        axes.plot(end["pass@1"], end["pass@64"], style.marker, color=style.color, zorder=front)


def _styles(edition: Edition) -> Styles:
    """Printed name → style; an average is a dotted line in the colour of its method."""
    protocol = edition.protocol
    names = {*protocol.tuned, *itertools.chain(*(stage.arms for stage in protocol.stages))}
    styles = styles_of([BASE, *map(arm_name, names)])
    averages = {arm_name(name + AVERAGED): styles[arm_name(name)] for name in names}
    return styles | {label: replace(style, label=label, dash=DOTTED, marker="") for label, style in averages.items()}

"""The laboratory's figures: paths through the plane of pass@1 and pass@64, and curves over cost and steps."""

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from apo_lab.editions.protocol import AVERAGED, Question
from apo_lab.reporting.figures.canvas import NamedFigure, method_legend, panels, styled, ticks_in_per_cent
from apo_lab.reporting.laboratory.frontier import FAMILY, locks_frontier
from apo_lab.reporting.laboratory.level_figures import level_figures
from apo_lab.reporting.laboratory.levels import groups
from apo_lab.reporting.laboratory.long_runs import STAGE as LONG
from apo_lab.reporting.laboratory.reading import MAIN, ArmRuns, Edition, Frame, arm_name
from apo_lab.reporting.names import BASE, slug
from apo_lab.reporting.style import QUIET, Style, styles_of

COSTS = {"tokens_sampled": "tokens sampled", "tokens_trained": "tokens trained", "seconds": "seconds"}
STEP = {"step": "training step"}
METRICS = {"pass@1": "pass@1", "pass@64": "pass@64", "strategy_entropy": "strategy entropy [nats]"}
FRONTIER_K = 64
DOTTED = (1.0, 1.3)
NEWEST, OTHERS = {"linewidth": 1.8, "zorder": 18}, {"linewidth": 0.8, "alpha": 0.6}
"""Looks of the arm that a panel is about, and of those that it is compared with."""
Frontier = Sequence[tuple[float, float]]
Styles = Mapping[str, Style]


def laboratory_figures(edition: Edition) -> list[NamedFigure]:
    """Level by level, a figure of paths for each question that has runs, then curves over cost and of long runs."""
    styles = _styles(edition)
    by_level = [f for group in groups(edition) for f in level_figures(group, edition.protocol.worlds, styles)]
    found = [_of_question(edition, question, styles) for question in edition.protocol.questions]
    return [*by_level, *(figure for figure in found if figure), *_of_curves(edition, styles)]


@styled
def paths_figure(
    pairs: Sequence[tuple[str, str]],
    arms: Mapping[str, ArmRuns],
    levels: Collection[float],
    best: Frontier,
    styles: Styles,
) -> Figure:
    """pass@64 against pass@1 along each arm's mean path; a panel for each second arm if the first ones differ."""
    shown, paths = [list(arms)], {name: arm.path for name, arm in arms.items()}
    if len({before for before, _ in pairs}) > 1:
        afters = dict.fromkeys(after for _, after in pairs if after in arms)
        shown = [[*(b for b, a in pairs if a == after and b in arms), after] for after in afters]
    figure, grid = panels(len(shown), height=2.9 if len(shown) == 1 else 2.1, most_columns=3 if len(shown) > 4 else 2)
    for axes, names in zip(grid, shown, strict=True):
        if best:
            axes.plot(*zip(*sorted(best), strict=True), color=QUIET, linewidth=1.0, zorder=1)
        for level in levels:
            axes.axvline(level, color=QUIET, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
        for name in names:
            look = {} if len(shown) == 1 else NEWEST if name == names[-1] else OTHERS
            _draw_path(axes, name, paths[name], styles[arms[name].label], look)
        start = paths[names[0]].iloc[0]
        axes.plot(start["pass@1"], start["pass@64"], "X", color=styles[BASE].color, zorder=40)
        if len(shown) > 1:
            axes.set_title(arm_name(names[-1].removesuffix(AVERAGED)))
        axes.set_xlabel("pass@1")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10]))
        ticks_in_per_cent(axes.xaxis, axes.yaxis)
    grid[0].set_ylabel("pass@64")
    labels = [BASE, *(arm.label for name, arm in arms.items() if not name.endswith(AVERAGED))]
    method_legend(figure, styles, labels, most_columns=2 if len(shown) == 1 else 4)
    return figure


@styled
def curves_figure(arms: Sequence[ArmRuns], xs: Mapping[str, str], ys: Mapping[str, str], styles: Styles) -> Figure:
    """Each of `ys` (a row) against each of `xs` (a column), or all in one row if `xs` is one: column → printed name."""
    pairs, paths = list(itertools.product(ys, xs)), {arm.label: arm.path for arm in arms}
    figure, grid = panels(len(pairs), height=1.9)
    for axes, (y, x) in zip(grid, pairs, strict=True):
        for arm in arms:
            style, path = styles[arm.label], paths[arm.label]
            axes.plot(path[x], path[y], **style.line, linewidth=1.2, zorder=2 + style.rank)
            axes.plot(path[x].iloc[-1:], path[y].iloc[-1:], style.marker, color=style.color, zorder=30 + style.rank)
        axes.set_xlabel(xs[x])
        axes.set_ylabel(ys[y])
        axes.xaxis.set_major_locator(MaxNLocator(nbins=4))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if y.startswith("pass"):
            ticks_in_per_cent(axes.yaxis)
    method_legend(figure, styles, [arm.label for arm in arms], most_columns=5)
    return figure


def _of_question(edition: Edition, question: Question, styles: Styles) -> NamedFigure | None:
    stage = edition.protocol.stage(question.stage)
    names = dict.fromkeys(itertools.chain(*question.pairs))
    arms = {name: arm for name in names if len((arm := edition.arm(stage, question.worlds, name)).runs)}
    if not any(after in arms for _, after in question.pairs):
        return None
    is_averaged = any(name.endswith(AVERAGED) for name in arms)
    dots = " Dotted: averages of the last policy with the base model." if is_averaged else ""
    grey = " Grey line: the frontier, the best choice of strategies by class, executed without a mistake."
    worlds = tuple(edition.protocol.worlds[name] for name in question.worlds)
    best = locks_frontier(worlds, FRONTIER_K) if {world.family for world in worlds} == {FAMILY} else ()
    levels = {world.level for world in worlds}
    return NamedFigure(
        f"lab_{question.key}",
        f"{question.text} ({edition.group_name(question.worlds)})",
        f"Mean path of each arm from the base model (cross) to its last step (marker).{dots} Upright line: L*."
        f"{grey if best else ''}",
        paths_figure(question.pairs, arms, levels, best, styles),
    )


def _of_curves(edition: Edition, styles: Styles) -> Iterator[NamedFigure]:
    passes = {metric: METRICS[metric] for metric in ("pass@1", "pass@64")}
    for stage in edition.protocol.stages:
        if stage.name in (MAIN, LONG):
            title, xs, ys = ("Cost", COSTS, passes) if stage.name == MAIN else ("Long runs", STEP, METRICS)
            for worlds, arms in edition.arms(stage).items():
                group = edition.group_name(worlds)
                trained = [arm for arm in arms if not arm.name.endswith(AVERAGED)]
                figure = curves_figure(trained, xs, ys, styles)
                caption = f"Against {', '.join(xs.values())}: means over seeds and worlds."
                yield NamedFigure(f"lab_{slug(title)}_{group}", f"{title} ({group})", caption, figure)


def _draw_path(axes: Axes, name: str, path: Frame, style: Style, look: Mapping[str, float]) -> None:
    axes.plot(path["pass@1"], path["pass@64"], **style.line, **{"linewidth": 1.4, "zorder": 2 + style.rank, **look})
    # An average's path ends at the last policy, which has its marker.
    if not name.endswith(AVERAGED):
        end = path.iloc[-1]
        axes.plot(
            end["pass@1"], end["pass@64"], style.marker, color=style.color, zorder=20 + look.get("zorder", style.rank)
        )


def _styles(edition: Edition) -> Styles:
    """Printed name → style; an average is a dotted line in the colour of its method."""
    protocol = edition.protocol
    names = {*protocol.tuned, *itertools.chain(*(stage.arms for stage in protocol.stages))}
    styles = styles_of([BASE, *map(arm_name, names)])
    averages = {arm_name(name + AVERAGED): styles[arm_name(name)] for name in names}
    return styles | {label: replace(style, label=label, dash=DOTTED, marker="") for label, style in averages.items()}

"""The tables of the laboratory's page: runs, arms, verdicts, long runs, tuning and predictions."""

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from apo_lab.editions.protocol import AVERAGED, Stage, method_of
from apo_lab.editions.tuning import chosen, configurations
from apo_lab.reporting.comparisons import DECIDED, Answered, Comparison, prediction_outcome
from apo_lab.reporting.reading import KS, MAIN, ArmRuns, Edition, Frame
from apo_lab.statistics.verdicts import mean_interval
from apo_lightning.evaluation.results import estimate_of
from apo_report.names import BASE, METHODS
from apo_report.records import Cell, Column, Table, TableRow, bare, left, right, row_of
from apo_report.tables.cells import EMPTY, number_cell, p_cell, points_cell, share_cell, with_best_bold

LONG = "long"
"""The stage of long runs."""
TITLES = {
    MAIN: "Each method at its best",
    "factorial": "Push or pull: λ × β of APO",
    "controls": "Parts of APO: one changed at a time",
    LONG: "Long runs",
    "candidates": "Candidates against every published method",
}
"""Stages with a title of their own, in the order of the page; others follow under their names."""
COMPARED = {
    "area": "the areas",
    "passage": "pass@64 where pass@1 first reaches L*, over the runs that reach it",
    "last": "pass@64 at the last step",
    "entered": "the share of a problem's entrances that 64 samples take where pass@1 first reaches L*",
    "locked_share": "the share of the loss of pass@64 that is locked where pass@1 first reaches L*",
}
"""Endpoint of a question → what its table compares."""
TAIL = 0.4
"""Share of the steps of a long run over which its slope is fitted."""


def progress_table(edition: Edition) -> Table:
    """Finished and planned runs of each stage."""
    stages = edition.protocol.stages
    rows = [row_of(s.name, str(edition.num_done(s)), f"{edition.protocol.num_runs(s):,}") for s in stages]
    refused = f"{edition.num_refused} rows of another registration were left out." if edition.num_refused else ""
    return Table(
        name="lab_runs",
        title="Runs of this edition",
        columns=(*left("Stage"), *right("Finished", "Planned")),
        rows=tuple(rows),
        notes=(*([refused] if refused else ()), "A comparison has a verdict when all its runs are finished."),
    )


def arms_table(edition: Edition, stage: Stage) -> Table:
    """The arms of a stage, by group of worlds."""
    rows = []
    for worlds, arms in edition.arms(stage).items():
        group = edition.group_name(worlds)
        ends = (share_cell(bare(arms[0].mean(f"base_pass@{k}"))) for k in KS)
        rows.append(row_of(BASE, EMPTY, EMPTY, *ends, EMPTY, EMPTY, EMPTY, EMPTY, section=group))
        rows += [_arm_row(arm, group) for arm in arms if arm.name in (m := method_of(arm.name), m + AVERAGED)]
    return Table(
        name=f"lab_{stage.name}_arms",
        title=f"{stage_title(stage)}: arms, in per cent",
        columns=(
            *left("Arm", "Settings"),
            Column("Runs"),
            *right(*(f"pass@{k}" for k in KS), "Retained", group="Last step"),
            *right("pass@64", "pass@8", group="Area"),
            Column("Reached L*"),
        ),
        rows=with_best_bold(rows),
        notes=(
            "Area: pass@64 at first passage, mean over levels of pass@1 from the base model's to L*, 0 where a run "
            "does not reach a level. In brackets: 95 % interval over seeds, problems and, if there are several, "
            "worlds. These values are means on the logit scale. Policies at the last step differ in pass@1 too.",
            "Retained: share of valid ways to a right answer with a probability of 1 in 10,000 or more.",
        ),
    )


def verdicts_table(stage: Stage, questions: Iterable[Answered]) -> Table:
    """The comparisons of a stage, by question."""
    own = [each for each in questions if each.question.stage == stage.name]
    rows = [_verdict_row(row, f"{each.question.key}: {each.question.text}") for each in own for row in each.comparisons]
    compared = " or ".join(text for name, text in COMPARED.items() if name in {each.question.endpoint for each in own})
    by_instance = ", ".join(each.question.key for each in own if each.question.unit == "instance")
    return Table(
        name=f"lab_{stage.name}_verdicts",
        title=f"{stage_title(stage)}: verdicts",
        columns=(
            *(*left("Comparison"), *right("Difference [points]", "p", "Adjusted p")),
            *(*left("Verdict"), *right("Last step [points]")),
        ),
        rows=tuple(rows),
        notes=(
            f"Difference of {compared}, with its 95 % interval over seeds, problems and worlds. Adjusted p: Holm's, "
            "over the comparisons of the question. Equivalent: the 90 % interval is within the margin. Last step: the "
            "difference of pass@64 there, secondary, without a correction or a verdict; pass@1 differs too.",
            *([f"The unit is the instance, one difference each, in the t-tests of {by_instance}."] * bool(by_instance)),
        ),
    )


def long_table(edition: Edition) -> Table:
    """Long runs, a row each and a row of means for each arm: does pass@64 come back, and does pass@1 still rise?"""
    rows = []
    for arm in itertools.chain(*edition.arms(edition.protocol.stage(LONG)).values()):
        runs = pd.DataFrame([long_run(points) for _, points in arm.by_run()])
        for place, ((world, *_, seed), points) in enumerate(arm.by_run()):
            has_passed = (points["pass@1"] >= points["level"]).any()
            name = Cell(f"{world}, seed {seed}", marked=not has_passed)
            rows.append(row_of(name, *_long_cells(runs[place : place + 1]), section=arm.label))
        rows.append(row_of("mean", *_long_cells(runs), section=arm.label))
    return Table(
        name="lab_long",
        title="Long runs: does collapse reverse, and has training converged?",
        columns=(
            *(
                *left("Run"),
                *right("lowest", "last", group="pass@64"),
                *right("lowest", "last", group="Entropy [nats]"),
            ),
            *right("last", "slope [points per 100 steps]", group="pass@1"),
        ),
        rows=tuple(rows),
        notes=(
            "Lowest: after the first passage of L*. It is below the last value by chance alone, so a small difference "
            "is no reversal. Slope: least squares over the last two fifths of the steps; ±: standard error over runs.",
            "†: the run does not reach L*, and its lowest values are those of the whole run.",
        ),
    )


def long_run(points: Frame) -> dict[str, float]:
    """A run after its first passage of L*, or as a whole if it does not reach it; the slope is per 100 steps."""
    reached = (points["pass@1"] >= points["level"]).to_numpy()
    after = points[reached.cumsum() > 0] if reached.any() else points
    tail = points[points["step"] >= (1 - TAIL) * points["step"].max()]
    return {
        "lowest pass@64": after["pass@64"].min(),
        "last pass@64": points["pass@64"].iloc[-1],
        "lowest entropy": after["strategy_entropy"].min(),
        "last entropy": points["strategy_entropy"].iloc[-1],
        "last pass@1": points["pass@1"].iloc[-1],
        "slope": 100 * float(np.polyfit(tail["step"], tail["pass@1"], 1)[0]) if len(tail) > 1 else math.nan,
    }


def tuning_table(edition: Edition) -> Table:
    """Every configuration of every tuned method, with the chosen ones in bold."""
    choice, rows = chosen(edition.protocol, edition.runs), []
    for each in configurations(edition.protocol, edition.runs) if edition.protocol.tuned else ():
        if each.values:
            is_chosen = choice.get((each.arm.method, each.family)) == each.arm
            seeds = f"{len(each.values)} of {each.num_seeds}"
            mean = share_cell(bare(math.fsum(each.values) / len(each.values)))
            name = Cell(each.arm.variant, bold=is_chosen)
            section = f"{each.family}, {METHODS[each.arm.method]}"
            rows.append(row_of(name, seeds, mean, "chosen" if is_chosen else "", section=section))
    return Table(
        name="lab_tuning",
        title="Tuning: every configuration, in per cent",
        columns=(*left("Settings"), *right("Runs", edition.protocol.tuned_by.capitalize()), *left("Choice")),
        rows=tuple(rows),
        notes=("Mean over the tuning seeds; a method is chosen when all its configurations are finished.",),
    )


def prediction_table(edition: Edition, questions: Sequence[Answered]) -> Table:
    """Each prediction and its outcome."""
    rows = []
    for each in edition.protocol.predictions if questions else ():
        outcome, rests_on = prediction_outcome(each, questions)
        decided = Cell(outcome, bold=outcome != "undecided")
        rows.append(row_of(each.statement, each.source, each.question, each.expected, decided, rests_on))
    return Table(
        name="lab_predictions",
        title="Predictions, registered before the runs",
        columns=left("Prediction", "Whose", "Question", "Expected", "Outcome", "Rests on"),
        rows=tuple(rows),
        notes=("Held: the verdict is the expected one. Failed: another verdict. Undecided: no verdict.",),
    )


def stage_title(stage: Stage) -> str:
    """The title of a stage's tables."""
    if stage.name == MAIN and not stage.methods:
        is_of_files = all(len(overrides) == 1 for overrides in stage.arms.values())
        return "Each method as its file sets it" if is_of_files else "Methods with the settings of the edition"
    return TITLES.get(stage.name, stage.name.replace("_", " ").capitalize())


def compared_stages(edition: Edition) -> list[Stage]:
    """The stages but `tuning` and those without a run, in the order of the page."""
    order = [*TITLES, *(stage.name for stage in edition.protocol.stages)]
    found = [stage for stage in edition.protocol.stages if not stage.tries_all and edition.num_done(stage)]
    return sorted(found, key=lambda stage: order.index(stage.name))


def _arm_row(arm: ArmRuns, group: str) -> TableRow:
    one, eight_at_end, alive, eight = (
        share_cell(bare(arm.mean(column))) for column in ("pass@1", "pass@8", "alive", "area_8")
    )
    last, area = (share_cell(estimate_of(mean_interval(arm.scores(endpoint)))) for endpoint in ("last", "area"))
    num_reached = int((arm.runs["reached"] >= arm.runs["level"]).sum())
    runs, reached = f"{len(arm.runs)} of {arm.num_planned}", f"{num_reached} of {len(arm.runs)}"
    ends = (EMPTY,) * 4 if arm.name != method_of(arm.name) else (one, eight_at_end, last, alive)
    return row_of(arm.label, arm.settings, runs, *ends, area, eight, reached, section=group)


def _verdict_row(comparison: Comparison, section: str) -> TableRow:
    contrast, verdict, last = comparison.contrast, comparison.verdict, comparison.last
    return row_of(
        comparison.label,
        points_cell(estimate_of(contrast.difference)) if contrast else EMPTY,
        p_cell(contrast.p_value) if contrast else EMPTY,
        p_cell(verdict.adjusted_p_value) if verdict else EMPTY,
        Cell(comparison.outcome, bold=comparison.outcome in DECIDED),
        points_cell(estimate_of(last.difference)) if last else EMPTY,
        section=section,
    )


def _long_cells(runs: Frame) -> list[Cell]:
    """The means of these runs, with the slope's standard error if they are several."""
    lowest, last, lowest_entropy, last_entropy, pass_1, slope = map(float, runs.mean())
    error = f" ± {100 * runs['slope'].sem():.2f}" if len(runs) > 1 else ""
    return [
        *(share_cell(bare(share)) for share in (lowest, last)),
        *(number_cell(bare(nats)) for nats in (lowest_entropy, last_entropy)),
        share_cell(bare(pass_1)),
        Cell(f"{100 * slope:+z.2f}{error}", 100 * slope),
    ]

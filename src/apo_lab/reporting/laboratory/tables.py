"""The laboratory's tables."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from apo_lab.reporting.laboratory.predictions import LEVELS, PREDICTIONS, recovered_branches
from apo_lab.reporting.laboratory.reading import REVIVAL, LabRun, base_point, by_puzzle, pass_table
from apo_lab.reporting.laboratory.statistics import (
    at_matched,
    difference_of,
    frontier_at,
    matched_difference,
    mean_of,
)
from apo_lab.reporting.names import BASE, method_name
from apo_lab.reporting.records import Cell, Table, bare, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY, number_cell, points_cell, share_cell, with_best_bold

KS = (1, 8, 64)
KINDS_OF_METRIC = ("entropy", "max_prob", "support")
Frontiers = Mapping[str, Sequence[tuple[float, float]]]
"""By puzzle, the points (pass@1, pass@64) of the frontier; absent where there is none to compute."""


def main_table(runs: Sequence[LabRun]) -> Table:
    """pass@k at the last step, and its distance to GRPO's."""
    rows = []
    for puzzle, methods in by_puzzle(runs).items():
        shares = (share_cell(bare(base_point(methods)[f"pass@{k}"])) for k in KS)
        rows.append(row_of(BASE, EMPTY, *shares, EMPTY, EMPTY, section=puzzle))
        for method, members in methods.items():
            against = EMPTY
            if method != "grpo" and "grpo" in methods:
                against = points_cell(difference_of(pass_table(methods["grpo"], 64), pass_table(members, 64)))
            shares = (share_cell(mean_of(pass_table(members, k))) for k in KS)
            alive = share_cell(bare(_mean([run.points[-1]["alive"] for run in members])))
            name, seeds, is_apo = method_name(method), str(len(members)), method == "apo"
            rows.append(row_of(name, seeds, *shares, against, alive, section=puzzle, highlight=is_apo))
    return Table(
        name="lab_main",
        title="pass@k of the held-out problems at the last step, in per cent, without sampling noise",
        columns=(*left("Method"), *right("Seeds", *(f"pass@{k}" for k in KS), "pass@64 − GRPO", "Alive")),
        rows=with_best_bold(rows),
        notes=(
            "Intervals: 95 %, over training seeds and problems together; differences are paired by problem.",
            "Alive: share of valid ways to a right answer that are retained (probability 1 in 10,000 or more).",
            "Methods learn at different speeds: the last step compares speed as much as method; see matched pass@1.",
        ),
    )


def matched_table(runs: Sequence[LabRun], frontiers: Frontiers) -> Table:
    """pass@8 and pass@64 where pass@1 passes a level fixed in advance, against GRPO there, and the frontier."""
    rows = []
    for puzzle, methods in by_puzzle(runs).items():
        for level in LEVELS[puzzle]:
            best = frontier_at(frontiers[puzzle], level) if puzzle in frontiers else math.nan
            for method, members in methods.items():
                eights, manys = ([at_matched(run, level, f"pass@{k}") for run in members] for k in (8, 64))
                against = None
                if method != "grpo" and "grpo" in methods:
                    against = matched_difference(methods["grpo"], members, level, "pass@64")
                many = _mean(manys)
                reached = f"{sum(not math.isnan(value) for value in manys)} of {len(members)}"
                cells = (*(share_cell(bare(x)) for x in (_mean(eights), many)), points_cell(against))
                cells += (share_cell(bare(best - many)),)
                section = f"{puzzle}, pass@1 = {level:.1%}"
                rows.append(row_of(method_name(method), reached, *cells, section=section, highlight=method == "apo"))
    return Table(
        name="lab_matched",
        title="At matched pass@1, in per cent",
        columns=(
            *left("Method"),
            *right("Seeds that reach it", "pass@8", "pass@64", "pass@64 − GRPO", "Frontier −"),
        ),
        rows=with_best_bold(rows, lower_is_better=(5,)),
        notes=(
            "A line through a run's evaluation points within ± 5 points of the level, read off at the level; means "
            "over seeds that reach it. Intervals: Welch's, over seeds, on these problems; none where a seed does not.",
            "Frontier −: the best choice of strategies by class, executed without a mistake, minus the method.",
        ),
    )


def entropy_table(runs: Sequence[LabRun]) -> Table:
    """Entropy, max-prob and support by kind of token at the last step."""
    rows = []
    for puzzle, methods in by_puzzle(runs).items():
        kinds = [key.partition("/")[2] for key in base_point(methods) if key.startswith("entropy/")]
        ends = {BASE: [base_point(methods)]}
        ends |= {method_name(method): [run.points[-1] for run in members] for method, members in methods.items()}
        for name, points in ends.items():
            for kind in kinds:
                means = (_mean([point[f"{metric}/{kind}"] for point in points]) for metric in KINDS_OF_METRIC)
                rows.append(row_of(name, kind, *(number_cell(bare(mean)) for mean in means), section=puzzle))
    return Table(
        name="lab_entropy",
        title="Where entropy goes: by kind of token at the last step",
        columns=(*left("Method", "Token"), *right("Entropy [nats]", "Max-prob", "Support")),
        rows=tuple(rows),
        notes=(
            "Means over tokens of all listed answers, each weighted by the policy's probability of its answer.",
            "Support: the policy's probability of the base model's top 8.",
        ),
    )


def revival_table(runs: Sequence[LabRun]) -> Table:
    """What is recovered when training continues from GRPO's last policy."""
    rows = []
    for puzzle, methods in by_puzzle(runs, REVIVAL).items():
        for method, members in methods.items():
            num_lost, num_recovered = np.sum([recovered_branches(run) for run in members], axis=0)
            ends = [
                cell(bare(_mean([run.points[point][metric] for run in members])))
                for metric, cell in (("pass@1", share_cell), ("pass@64", share_cell), ("valid_entropy", number_cell))
                for point in (0, -1)
            ]
            name, seeds, revived = method_name(method), str(len(members)), f"{num_recovered:,} of {num_lost:,}"
            rows.append(row_of(name, seeds, *ends, revived, section=puzzle, highlight=method == "apo"))
    return Table(
        name="lab_revival",
        title="Revival: begun with GRPO's last policy, anchored to the base model",
        columns=(
            *left("Method"),
            *right("Seeds"),
            *(c for group in ("pass@1", "pass@64", "Valid entropy [nats]") for c in right("start", "end", group=group)),
            *right("Dead branches revived"),
        ),
        rows=tuple(rows),
        notes=(
            "Dead: a valid (problem, strategy) pair below 1 in 10,000 at an evaluation point; revived: at least twice "
            "that at a later one.",
        ),
    )


def cost_table(runs: Sequence[LabRun]) -> Table:
    """What a run of each method took."""
    rows = []
    for puzzle, methods in by_puzzle(runs).items():
        for method, members in methods.items():
            costs = [members[0].steps[-1], *np.mean([_cost(run) for run in members], axis=0).tolist()]
            cells = (Cell(f"{x:,.{decimals}f}", x) for x, decimals in zip(costs, (0, 0, 0, 0, 1), strict=True))
            rows.append(row_of(method_name(method), *cells, section=puzzle))
    return Table(
        name="lab_cost",
        title="Cost of a run",
        columns=(
            *left("Method"),
            *right("Steps", "Samples", "Tokens trained", "Training [s]", "Of it reference [s]"),
        ),
        rows=tuple(rows),
        notes=(
            "Means over seeds, on one core, without the evaluation of held-out problems. Tokens trained: those of "
            "completions that have a gradient.",
        ),
    )


def prediction_table(runs: Sequence[LabRun]) -> Table:
    """Each prediction and its outcome."""
    puzzles = by_puzzle(runs)
    rows = []
    for prediction in PREDICTIONS:
        for puzzle in prediction.puzzles:
            if puzzle in puzzles:
                result, evidence = prediction.outcome(puzzles[puzzle])
                decided = Cell(result, bold=result in ("held", "failed"))
                rows.append(row_of(prediction.statement, prediction.source, puzzle, decided, evidence))
    return Table(
        name="lab_predictions",
        title="Predictions, each registered before the runs that decide it",
        columns=left("Prediction", "Whose", "Puzzle", "Outcome", "Evidence"),
        rows=tuple(rows),
        notes=(
            "Undecided: the 95 % interval holds 0. About one in twenty statements would be decided by chance alone.",
        ),
    )


def _mean(values: Sequence[float]) -> float:
    """The mean of the values that are known; NaN of none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _cost(run: LabRun) -> tuple[float, float, float, float]:
    """Samples, tokens trained, seconds of training, and of it the reference's."""
    steps: Any = run.metrics
    samples = steps["reward/num_correct"] + steps["reward/num_incorrect"]
    trained = samples * steps["train/completion_tokens"] * (1 - steps["train/skipped_fraction"])
    reference = steps["time/reference"].sum() if "time/reference" in steps else 0.0
    return samples.sum(), trained.sum(), steps["time/step"].sum(), reference

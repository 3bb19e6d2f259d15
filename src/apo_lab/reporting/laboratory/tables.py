"""The laboratory's tables."""

import math
from collections.abc import Mapping, Sequence

from apo_lab.reporting.laboratory.predictions import LEVELS, PREDICTIONS, recovered_branches
from apo_lab.reporting.laboratory.reading import REVIVAL, SWEEP, LabRun, by_method, puzzles_of
from apo_lab.reporting.laboratory.statistics import (
    at_matched,
    bare,
    difference,
    frontier_at,
    matched_difference,
    mean_pass_at_k,
)
from apo_lab.reporting.names import BASE, in_method_order, method_name
from apo_lab.reporting.records import Cell, Table, left, right, row_of
from apo_lab.reporting.tables.cells import EMPTY, number_cell, share_cell, with_best_bold

KS = (1, 8, 64)
KINDS_OF_METRIC = ("entropy", "max_prob", "support")
Frontiers = Mapping[str, Sequence[tuple[float, float]]]
"""By puzzle, the points (pass@1, pass@64) of the frontier; absent where there is none to compute."""


def main_table(runs: Sequence[LabRun]) -> Table:
    """pass@k at the last step, and its distance to GRPO's."""
    rows = []
    for puzzle, methods in _puzzles(runs):
        base = next(iter(methods.values()))[0].points[0]
        rows.append(
            row_of(BASE, EMPTY, *(share_cell(bare(base[f"pass@{k}"])) for k in KS), EMPTY, EMPTY, section=puzzle)
        )
        for method in _ordered(methods):
            members = methods[method]
            against = EMPTY
            if method != "grpo" and "grpo" in methods:
                against = number_cell(difference(methods["grpo"], members, 64), scale=100.0, decimals=2, signed=True)
            retained = sum(run.points[-1]["alive"] for run in members) / len(members)
            rows.append(
                row_of(
                    method_name(method),
                    str(len(members)),
                    *(share_cell(mean_pass_at_k(members, k)) for k in KS),
                    against,
                    share_cell(bare(retained)),
                    section=puzzle,
                    highlight=method == "apo",
                )
            )
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
    for puzzle, methods in _puzzles(runs):
        for level in LEVELS[puzzle]:
            best = frontier_at(frontiers[puzzle], level) if puzzle in frontiers else math.nan
            for method in _ordered(methods):
                members = methods[method]
                eights, manys = ([at_matched(run, level, f"pass@{k}") for run in members] for k in (8, 64))
                against = None
                if method != "grpo" and "grpo" in methods:
                    against = matched_difference(methods["grpo"], members, level, "pass@64")
                rows.append(
                    row_of(
                        method_name(method),
                        f"{sum(not math.isnan(value) for value in manys)} of {len(members)}",
                        share_cell(bare(_mean(eights))),
                        share_cell(bare(_mean(manys))),
                        number_cell(against, scale=100.0, decimals=2, signed=True),
                        share_cell(bare(best - _mean(manys))),
                        section=f"{puzzle}, pass@1 = {level:.1%}",
                        highlight=method == "apo",
                    )
                )
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
    for puzzle, methods in _puzzles(runs):
        base = next(iter(methods.values()))[0].points[0]
        policies = {BASE: [base]}
        policies |= {method_name(m): [run.points[-1] for run in methods[m]] for m in _ordered(methods)}
        for name, points in policies.items():
            for kind in (key.partition("/")[2] for key in base if key.startswith("entropy/")):
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
    for puzzle in puzzles_of(runs):
        methods = by_method(runs, puzzle, revivals=True)
        for method in _ordered(methods):
            members = methods[method]
            num_lost, num_recovered = (sum(column) for column in zip(*map(recovered_branches, members), strict=True))
            ends = {
                metric: [bare(_mean([run.points[point][metric] for run in members])) for point in (0, -1)]
                for metric in ("pass@1", "pass@64", "valid_entropy")
            }
            rows.append(
                row_of(
                    method_name(method),
                    str(len(members)),
                    *(share_cell(mean) for metric in ("pass@1", "pass@64") for mean in ends[metric]),
                    *(number_cell(mean) for mean in ends["valid_entropy"]),
                    f"{num_recovered:,} of {num_lost:,}",
                    section=puzzle,
                    highlight=method == "apo",
                )
            )
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
    for puzzle, methods in _puzzles(runs):
        for method in _ordered(methods):
            steps = methods[method][0].steps[-1]
            samples, trained, training, reference = map(_mean, zip(*map(_cost, methods[method]), strict=True))
            rows.append(
                row_of(
                    method_name(method),
                    Cell(str(steps), steps),
                    Cell(f"{samples:,.0f}", samples),
                    Cell(f"{trained:,.0f}", trained),
                    Cell(f"{training:.0f}", training),
                    Cell(f"{reference:.1f}", reference),
                    section=puzzle,
                )
            )
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
    rows = []
    puzzles = dict(_puzzles(runs))
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


def _puzzles(runs: Sequence[LabRun]) -> list[tuple[str, dict[str, list[LabRun]]]]:
    methods = [run for run in runs if not run.method.startswith((REVIVAL, SWEEP))]
    return [(name, by_method(runs, name)) for name in puzzles_of(methods)]


def _ordered(methods: Mapping[str, object]) -> list[str]:
    by_name = {method_name(method): method for method in methods}
    return [by_name[name] for name in in_method_order(by_name)]


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def _cost(run: LabRun) -> tuple[float, float, float, float]:
    """Samples, tokens trained, seconds of training, and of it the reference's."""
    correct, incorrect = run.column("reward/num_correct"), run.column("reward/num_incorrect")
    samples = [one + other for one, other in zip(correct, incorrect, strict=True)]
    tokens, skipped = run.column("train/completion_tokens"), run.column("train/skipped_fraction")
    trained = sum(n * length * (1 - share) for n, length, share in zip(samples, tokens, skipped, strict=True))
    return sum(samples), trained, sum(run.column("time/step")), sum(run.column("time/reference"))

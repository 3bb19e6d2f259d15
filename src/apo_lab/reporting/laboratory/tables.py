"""The laboratory's tables."""

import math
from collections.abc import Mapping, Sequence

from apo_lab.reporting.laboratory.predictions import LEVELS, PREDICTIONS, revived_share
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
from apo_lab.reporting.records import Cell, Column, Table, TableRow
from apo_lab.reporting.tables.cells import EMPTY, number_cell, share_cell, with_best_bold

KS = (1, 8, 64)
Frontiers = Mapping[str, Sequence[tuple[float, float]]]
"""By puzzle, the points (pass@1, pass@64) of the frontier; absent where there is none to compute."""


def main_table(runs: Sequence[LabRun]) -> Table:
    """pass@k at the last step, and its distance to GRPO's."""
    rows = []
    for puzzle, methods in _puzzles(runs):
        base = next(iter(methods.values()))[0]
        cells = [share_cell(bare(base.looks[0][f"pass@{k}"])) for k in KS]
        rows.append(TableRow(cells=(Cell(text=BASE), EMPTY, *cells, EMPTY, EMPTY), section=puzzle))
        for method in _ordered(methods):
            members = methods[method]
            against = EMPTY
            if method != "grpo" and "grpo" in methods:
                against = number_cell(difference(methods["grpo"], members, 64), scale=100.0, decimals=2, signed=True)
            alive = sum(run.looks[-1]["alive"] for run in members) / len(members)
            cells = [share_cell(mean_pass_at_k(members, k)) for k in KS]
            rows.append(
                TableRow(
                    cells=(
                        Cell(text=method_name(method)),
                        Cell(text=str(len(members))),
                        *cells,
                        against,
                        share_cell(bare(alive)),
                    ),
                    section=puzzle,
                    highlight=method == "apo",
                )
            )
    return Table(
        name="lab_main",
        title="pass@k of the held-out problems at the last step, in per cent, without sampling noise",
        columns=(
            Column(name="Method", align="left"),
            Column(name="Seeds"),
            *(Column(name=f"pass@{k}") for k in KS),
            Column(name="pass@64 − GRPO"),
            Column(name="Alive"),
        ),
        rows=with_best_bold(rows),
        notes=(
            "Intervals: 95 %, over training seeds and problems together; differences are paired by problem.",
            "Alive: valid ways to a right answer that keep a probability of 1 in 10,000 or more.",
            "Methods learn at different speeds: the last step compares clocks as much as methods; see matched pass@1.",
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
                scores = {k: [at_matched(run, level, f"pass@{k}") for run in members] for k in (8, 64)}
                reached = [value for value in scores[64] if not math.isnan(value)]
                against = EMPTY
                if method != "grpo" and "grpo" in methods:
                    found = matched_difference(methods["grpo"], members, level, "pass@64")
                    against = EMPTY if found is None else number_cell(found, scale=100.0, decimals=2, signed=True)
                eight, many = (bare(_mean(scores[k])) for k in (8, 64))
                gap = bare(best - many.value)
                rows.append(
                    TableRow(
                        cells=(
                            Cell(text=method_name(method)),
                            Cell(text=f"{len(reached)} of {len(members)}"),
                            share_cell(eight),
                            share_cell(many),
                            against,
                            share_cell(gap),
                        ),
                        section=f"{puzzle}, pass@1 = {level:.1%}",
                        highlight=method == "apo",
                    )
                )
    return Table(
        name="lab_matched",
        title="At matched pass@1, in per cent",
        columns=(
            Column(name="Method", align="left"),
            Column(name="Seeds that reach it"),
            Column(name="pass@8"),
            Column(name="pass@64"),
            Column(name="pass@64 − GRPO"),
            Column(name="Frontier −"),
        ),
        rows=with_best_bold(rows, lower_is_better=(5,)),
        notes=(
            "A line through a run's looks within ± 5 points of the level, read off at the level; means over seeds "
            "that reach it. Intervals: Welch's, over seeds, on these problems; none where a seed stays below.",
            "Frontier −: what the best choice of strategies by class, carried out without a mistake, has more.",
        ),
    )


def entropy_table(runs: Sequence[LabRun]) -> Table:
    """Entropy, max-prob and support by kind of token at the last step."""
    rows = []
    kinds_of = {}
    for puzzle, methods in _puzzles(runs):
        first = next(iter(methods.values()))[0].looks[0]
        kinds_of[puzzle] = kinds = [key.partition("/")[2] for key in first if key.startswith("entropy/")]
        for name, looks in [
            (BASE, [first]),
            *((method_name(method), [run.looks[-1] for run in methods[method]]) for method in _ordered(methods)),
        ]:
            for kind in kinds:
                values = [bare(_mean([look[f"{what}/{kind}"] for look in looks])) for what in _WHAT]
                rows.append(
                    TableRow(
                        cells=(Cell(text=name), Cell(text=kind), *(number_cell(value) for value in values)),
                        section=puzzle,
                    )
                )
    return Table(
        name="lab_entropy",
        title="Where entropy goes: by kind of token at the last step",
        columns=(
            Column(name="Method", align="left"),
            Column(name="Token", align="left"),
            Column(name="Entropy [nats]"),
            Column(name="Max-prob"),
            Column(name="Support"),
        ),
        rows=tuple(rows),
        notes=(
            "Means over tokens of all listed answers, each weighted by the policy's probability of its answer.",
            "Support: the policy's probability of the base model's top 8.",
        ),
    )


_WHAT = ("entropy", "max_prob", "support")


def revival_table(runs: Sequence[LabRun]) -> Table:
    """What comes back when training goes on from GRPO's last policy."""
    rows = []
    for puzzle in puzzles_of(runs):
        methods = by_method(runs, puzzle, revivals=True)
        for method in _ordered(methods):
            members = methods[method]
            counts = [revived_share(run) for run in members]
            num_dead, num_revived = (sum(column) for column in zip(*counts, strict=True))
            ends = [
                [bare(_mean([run.looks[look][f"pass@{k}"] for run in members])) for look in (0, -1)] for k in (1, 64)
            ]
            entropy = [bare(_mean([run.looks[look]["valid_entropy"] for run in members])) for look in (0, -1)]
            rows.append(
                TableRow(
                    cells=(
                        Cell(text=method_name(method)),
                        Cell(text=str(len(members))),
                        *(share_cell(value) for pair in ends for value in pair),
                        *(number_cell(value) for value in entropy),
                        Cell(text=f"{num_revived:,} of {num_dead:,}"),
                    ),
                    section=puzzle,
                    highlight=method == "apo",
                )
            )
    return Table(
        name="lab_revival",
        title="Revival: begun with GRPO's last policy, anchored to the base model",
        columns=(
            Column(name="Method", align="left"),
            Column(name="Seeds"),
            *(
                Column(name=name, group=group)
                for group in ("pass@1", "pass@64", "Valid entropy [nats]")
                for name in _ENDS
            ),
            Column(name="Dead branches revived"),
        ),
        rows=tuple(rows),
        notes=(
            "Dead: a valid (problem, strategy) pair below 1 in 10,000 at a look; revived: twice that at a later one.",
        ),
    )


_ENDS = ("start", "end")


def cost_table(runs: Sequence[LabRun]) -> Table:
    """What a run of each method took."""
    rows = []
    for puzzle, methods in _puzzles(runs):
        for method in _ordered(methods):
            members = methods[method]
            steps = members[0].steps[-1]
            columns = [_cost(run) for run in members]
            samples, trained, training, reference = (_mean(column) for column in zip(*columns, strict=True))
            rows.append(
                TableRow(
                    cells=(
                        Cell(text=method_name(method)),
                        Cell(text=str(steps), value=steps),
                        Cell(text=f"{samples:,.0f}", value=samples),
                        Cell(text=f"{trained:,.0f}", value=trained),
                        Cell(text=f"{training:.0f}", value=training),
                        Cell(text=f"{reference:.1f}", value=reference),
                    ),
                    section=puzzle,
                )
            )
    return Table(
        name="lab_cost",
        title="Cost of a run",
        columns=(
            Column(name="Method", align="left"),
            Column(name="Steps"),
            Column(name="Samples"),
            Column(name="Tokens trained"),
            Column(name="Training [s]"),
            Column(name="Of it reference [s]"),
        ),
        rows=tuple(rows),
        notes=(
            "Means over seeds; on one core, looks at the held-out problems left out. Tokens trained: of completions "
            "that the update ran, those without a gradient left out.",
        ),
    )


def prediction_table(runs: Sequence[LabRun]) -> Table:
    """Each prediction and what became of it."""
    rows = []
    puzzles = dict(_puzzles(runs))
    for prediction in PREDICTIONS:
        for puzzle in prediction.puzzles:
            if puzzle not in puzzles:
                continue
            verdict = prediction.verdict(puzzle, puzzles[puzzle])
            rows.append(
                TableRow(
                    cells=(
                        Cell(text=prediction.statement),
                        Cell(text=prediction.source),
                        Cell(text=puzzle),
                        Cell(text=verdict.outcome, bold=verdict.outcome in ("held", "failed")),
                        Cell(text=verdict.evidence),
                    )
                )
            )
    return Table(
        name="lab_predictions",
        title="Predictions, each registered before the runs that decide it",
        columns=tuple(
            Column(name=name, align="left") for name in ("Prediction", "Whose", "Puzzle", "Outcome", "Evidence")
        ),
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

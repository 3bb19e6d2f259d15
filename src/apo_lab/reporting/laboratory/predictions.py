"""What was predicted before the runs that decide it, and whether it held: each prediction can fail.

All but those on the controls of the mechanism, their thresholds and the levels of pass@1 were fixed when only GRPO had
been run on the puzzles; those on the controls when all but these had been.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch

from apo_lab.reporting.laboratory.reading import LabRun, Methods, pass_table
from apo_lab.reporting.laboratory.statistics import difference_of, matched_difference, welch
from apo_lab.reporting.names import data_rows, method_name
from apo_lab.statistics.exact import DEAD
from apo_lightning.evaluation.records import Estimate

LEVELS: Mapping[str, tuple[float, float, float]] = {"locks": (0.30, 0.33, 0.36), "countdown": (0.25, 0.265, 0.28)}
"""Levels of pass@1 at which methods are compared, by puzzle."""
RECOVERED = 2.0
"""A lost branch counts as recovered from this many times `DEAD` on: at the barrier itself rounding would count."""
NEAR = 0.03
"""Methods whose pass@64 differs by no more are taken to be equal."""


class Outcome(NamedTuple):
    """What the runs of one puzzle say about a prediction."""

    result: Literal["held", "failed", "undecided", "not run"]
    evidence: str


@dataclass(frozen=True, slots=True)
class Prediction:
    """One statement that the runs decide."""

    statement: str
    source: str
    """The paper's claim, or this project's theory of the algorithm."""
    puzzles: tuple[str, ...]
    methods: tuple[str, ...]
    """Methods that it needs."""
    decide: Callable[..., Outcome]
    """Of the runs and the methods."""

    def outcome(self, runs: Methods) -> Outcome:
        """Decide it, where all its methods were run with two seeds or more."""
        missing = [method for method in self.methods if len(runs.get(method, ())) < 2]
        return (
            Outcome("not run", f"needs two seeds of {', '.join(missing)}")
            if missing
            else self.decide(runs, *self.methods)
        )


def _collapse(runs: Methods, method: str) -> Outcome:
    changes = (pass_table(runs[method], 64) - pass_table(runs[method], 64, 0)).mean(1).tolist()
    text = "change of pass@64 by seed " + ", ".join(f"{change:+.3f}" for change in changes)
    return Outcome("held" if max(changes) <= -0.05 else "failed", text)


def _last_step(runs: Methods, low: str, high: str) -> Outcome:
    return _above_zero(_difference(runs, low, high), "pass@64 at the last step, APO − GRPO")


def _at_matched(runs: Methods, low: str, high: str, metric: str, what: str) -> Outcome:
    unit = " [nats]" if metric.startswith("entropy") else ""
    found = matched_difference(runs[low], runs[high], _level(runs[high]), metric)
    return _above_zero(found, f"{what} pass@1 = {_level(runs[high])}{unit}, APO − GRPO")


def _smaller_when_matched(runs: Methods, low: str, high: str) -> Outcome:
    last, level = _difference(runs, low, high), _level(runs[high])
    matched = matched_difference(runs[low], runs[high], level, "pass@64")
    if matched is None:
        return Outcome("undecided", f"a seed does not pass pass@1 = {level}")
    text = f"APO − GRPO in pass@64: {matched.value:+.3f} at pass@1 = {level}, {last.value:+.3f} at the last step"
    return Outcome("held" if abs(matched.value) < abs(last.value) else "failed", text)


def _slower_losses(runs: Methods, low: str, high: str) -> Outcome:
    retained = [[run.points[-1]["alive"] for run in runs[method]] for method in (low, high)]
    return _above_zero(welch(*retained), "share of valid branches alive at the last step, APO − GRPO")


def _no_recovery(runs: Methods, method: str) -> Outcome:
    num_lost, num_recovered = (sum(counts) for counts in zip(*map(recovered_branches, runs[method]), strict=True))
    if num_lost == 0:
        return Outcome("undecided", "no branch died")
    share = num_recovered / num_lost
    text = f"{num_recovered} of {num_lost} dead branches revived ({share:.1%})"
    return Outcome("held" if share <= 0.05 else "failed", text)


def _outside_gains_less(runs: Methods, low: str, high: str) -> Outcome:
    gaps = [
        [_retained(run, slice(0, 8)) - _retained(run, slice(8, 12)) for run in runs[method]] for method in (low, high)
    ]
    return _above_zero(welch(*gaps), "share alive, base ranks 1–8 minus 9–12, APO − GRPO")


def _no_choice_among_all(runs: Methods, low: str, high: str) -> Outcome:
    found = _difference(runs, low, high)
    text = f"pass@64, K = 12 minus β = 0: {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return Outcome("held" if abs(found.value) <= NEAR else "failed", text)


def _never_saturated(runs: Methods, method: str) -> Outcome:
    # 1/Z_ref bounds r_anchor; Z_ref is at least the base model's mass on its top 8 minus its largest.
    base = runs[method][0].points[0]
    bound = 1 / (base["support/strategy"] - base["max_prob/strategy"])
    return Outcome("held" if bound < 2.5 else "failed", f"r_anchor at most {bound:.2f} at strategy tokens, against 2.5")


def _every_seed(runs: Methods, low: str, high: str) -> Outcome:
    """Held where `high` has the higher pass@64 at the last step with every seed, failed where with none."""
    gaps, text = _gaps(runs, low, high)
    return Outcome("held" if min(gaps) > 0 else "failed" if max(gaps) < 0 else "undecided", text)


def _within(runs: Methods, low: str, high: str) -> Outcome:
    """Held where the mean gap in pass@64 at the last step is at most `NEAR`."""
    gaps, text = _gaps(runs, low, high)
    return Outcome("held" if abs(sum(gaps) / len(gaps)) <= NEAR else "failed", text)


def _gaps(runs: Methods, low: str, high: str) -> tuple[list[float], str]:
    """By how much `high` exceeds `low` in pass@64 at the last step, seed by seed, and the same as text."""
    by_seed = {run.seed: run for run in runs[low]}
    above = [run for run in runs[high] if run.seed in by_seed]
    below = [by_seed[run.seed] for run in above]
    gaps = (pass_table(above, 64) - pass_table(below, 64)).mean(1).tolist()
    values = ", ".join(f"{gap:+.3f}" for gap in gaps)
    return gaps, f"pass@64 at the last step, {method_name(high)} − {method_name(low)}, by seed {values}"


def _difference(runs: Methods, before: str, after: str) -> Estimate:
    return difference_of(pass_table(runs[before], 64), pass_table(runs[after], 64))


def _above_zero(found: Estimate | None, what: str) -> Outcome:
    """Held where the whole interval is above 0, failed where it is below, undecided otherwise."""
    if found is None or not math.isfinite(found.low):
        return Outcome("undecided", f"{what}: no interval")
    text = f"{what} {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return Outcome("held" if found.low > 0 else "failed" if found.high < 0 else "undecided", text)


def _level(runs: Sequence[LabRun]) -> float:
    return LEVELS[runs[0].puzzle][1]


def _retained(run: LabRun, ranks: slice) -> float:
    """Share of the valid branches of these base ranks that the policy retains at the last step."""
    mass, valid = run.last.valid_mass[:, ranks], run.last.has_valid[:, ranks]
    return (mass[valid] >= DEAD).double().mean().item()


def recovered_branches(run: LabRun) -> tuple[int, int]:
    """Valid branches that were lost at an evaluation point, and how many of them were recovered at a later one."""
    first, *later = (run.scores(point) for point in range(len(run.steps)))
    lost = first.valid_mass[first.has_valid] < DEAD
    recovered = torch.zeros_like(lost)
    for scores in later:
        mass = scores.valid_mass[scores.has_valid]
        recovered |= lost & (mass >= RECOVERED * DEAD)
        lost |= mass < DEAD
    return int(lost.sum()), int(recovered.sum())


_DECISIONS: Mapping[str, Callable[..., Outcome]] = {
    "collapse": _collapse,
    "higher at the last step": _last_step,
    "higher at matched pass@1": partial(_at_matched, metric="pass@64", what="pass@64 at"),
    "nearer at matched pass@1": _smaller_when_matched,
    "more alive": _slower_losses,
    "dead stay dead": _no_recovery,
    "outside gains less": _outside_gains_less,
    "entropy of digits": partial(_at_matched, metric="entropy/digit", what="entropy of digit tokens at"),
    "entropy of strategies": partial(_at_matched, metric="entropy/strategy", what="entropy of strategy tokens at"),
    "push alone": _no_choice_among_all,
    "never saturated": _never_saturated,
    "higher with every seed": _every_seed,
    "near": _within,
}
PREDICTIONS = tuple(
    Prediction(
        statement=row["statement"],
        source=row["source"],
        puzzles=tuple(row["puzzles"].split()),
        methods=tuple(row["methods"].split()),
        decide=_DECISIONS[row["decision"]],
    )
    for row in data_rows("laboratory/predictions.csv")
)
"""All predictions, in the order of the page; docs/lab-predictions.md registers the statements word by word."""

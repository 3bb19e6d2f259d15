"""What was predicted before the runs that decide it, and whether it held: each prediction can fail.

All but those on the controls of the mechanism, their thresholds and the levels of pass@1 were fixed when only GRPO had
been run on the puzzles; those on the controls when all but these had been.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

from apo_lab.reporting.laboratory.reading import LabRun
from apo_lab.reporting.laboratory.statistics import difference, matched_difference, welch
from apo_lab.reporting.names import method_name
from apo_lab.statistics.exact import DEAD
from apo_lightning.evaluation.records import Estimate

Runs = Mapping[str, Sequence[LabRun]]
"""The runs of one puzzle, by method."""

LEVELS: Mapping[str, tuple[float, float, float]] = {"locks": (0.30, 0.33, 0.36), "countdown": (0.25, 0.265, 0.28)}
"""Levels of pass@1 at which methods are compared, by puzzle."""
RECOVERED = 2.0
"""A lost branch counts as recovered from this many times `DEAD` on: at the barrier itself rounding would count."""


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
    decide: Callable[[Runs], Outcome]

    def outcome(self, runs: Runs) -> Outcome:
        """Decide it, where all its methods were run with two seeds or more."""
        missing = [method for method in self.methods if len(runs.get(method, ())) < 2]
        return Outcome("not run", f"needs two seeds of {', '.join(missing)}") if missing else self.decide(runs)


PREDICTIONS: list[Prediction] = []
"""All predictions, in the order of the page; docs/lab-predictions.md registers the statements word by word."""
BOTH = ("locks", "countdown")


def registered(
    source: str, *methods: str, puzzles: tuple[str, ...] = ("locks",)
) -> Callable[[Callable[[Runs], Outcome]], Callable[[Runs], Outcome]]:
    """Register a function as a prediction, its docstring being the statement.

    Args:
        source: whose prediction it is.
        methods: that it needs.
        puzzles: on which it is decided.
    """

    def register(decide: Callable[[Runs], Outcome]) -> Callable[[Runs], Outcome]:
        PREDICTIONS.append(Prediction(decide.__doc__ or "", source, puzzles, methods, decide))
        return decide

    return register


@registered("paper", "grpo", puzzles=BOTH)
def _collapse(runs: Runs) -> Outcome:
    """Under GRPO pass@64 falls below the base model's, by .05 or more with every seed."""
    changes = [(run.pass_at(64) - run.pass_at(64, 0)).mean().item() for run in runs["grpo"]]
    text = "change of pass@64 by seed " + ", ".join(f"{change:+.3f}" for change in changes)
    return Outcome("held" if max(changes) <= -0.05 else "failed", text)


@registered("paper", "grpo", "apo", puzzles=BOTH)
def _last_step(runs: Runs) -> Outcome:
    """At the last step APO's pass@64 is above GRPO's."""
    return _above_zero(difference(runs["grpo"], runs["apo"], 64), "pass@64 at the last step, APO − GRPO")


@registered("paper", "grpo", "apo", puzzles=BOTH)
def _matched(runs: Runs) -> Outcome:
    """At matched pass@1 APO's pass@64 is above GRPO's: it lies nearer the frontier."""
    return _above_zero(_matched_gap(runs, "pass@64"), f"pass@64 at pass@1 = {_level(runs)}, APO − GRPO")


@registered("theory", "grpo", "apo", puzzles=BOTH)
def _smaller_when_matched(runs: Runs) -> Outcome:
    """APO differs from GRPO less at matched pass@1 than at the last step."""
    matched, last, level = _matched_gap(runs, "pass@64"), difference(runs["grpo"], runs["apo"], 64), _level(runs)
    if matched is None:
        return Outcome("undecided", f"a seed does not pass pass@1 = {level}")
    text = f"APO − GRPO in pass@64: {matched.value:+.3f} at pass@1 = {level}, {last.value:+.3f} at the last step"
    return Outcome("held" if abs(matched.value) < abs(last.value) else "failed", text)


@registered("theory", "grpo", "apo", puzzles=BOTH)
def _slower_losses(runs: Runs) -> Outcome:
    """Branches that shrink do so more slowly under APO: more valid branches are alive at the last step."""
    retained = [[run.points[-1]["alive"] for run in runs[method]] for method in ("grpo", "apo")]
    return _above_zero(welch(*retained), "share of valid branches alive at the last step, APO − GRPO")


@registered("theory", "apo", puzzles=BOTH)
def _no_recovery(runs: Runs) -> Outcome:
    """Branches that are dead stay dead under APO: at most 5 % of them are revived within the run."""
    num_lost, num_recovered = (sum(counts) for counts in zip(*map(recovered_branches, runs["apo"]), strict=True))
    if num_lost == 0:
        return Outcome("undecided", "no branch died")
    share = num_recovered / num_lost
    text = f"{num_recovered} of {num_lost} dead branches revived ({share:.1%})"
    return Outcome("held" if share <= 0.05 else "failed", text)


@registered("theory", "grpo", "apo")
def _outside_gains_less(runs: Runs) -> Outcome:
    """Strategies outside the base model's top 8 gain less from APO than those inside."""
    gaps = [
        [_retained(run, slice(0, 8)) - _retained(run, slice(8, 12)) for run in runs[method]]
        for method in ("grpo", "apo")
    ]
    return _above_zero(welch(*gaps), "share alive, base ranks 1–8 minus 9–12, APO − GRPO")


@registered("theory", "grpo", "apo")
def _digit_entropy(runs: Runs) -> Outcome:
    """At matched pass@1 the digits, where the reference is surer, keep more entropy under APO."""
    return _entropy(runs, "digit")


@registered("paper", "grpo", "apo")
def _strategy_entropy(runs: Runs) -> Outcome:
    """At matched pass@1 the choice of a strategy keeps more entropy under APO."""
    return _entropy(runs, "strategy")


@registered("theory", "push_only", "apo_k12")
def _no_choice_among_all(runs: Runs) -> Outcome:
    """With all twelve strategies among the anchors (K = 12) APO is its push alone: pass@64 within .03."""
    found = difference(runs["push_only"], runs["apo_k12"], 64)
    text = f"pass@64, K = 12 minus β = 0: {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return Outcome("held" if abs(found.value) <= 0.03 else "failed", text)


@registered("theory", "apo")
def _never_saturated(runs: Runs) -> Outcome:
    """At strategy tokens r_anchor cannot reach 2.5, so the pull is never switched off there."""
    # 1/Z_ref bounds r_anchor; Z_ref is at least the base model's mass on its top 8 minus its largest.
    base = runs["apo"][0].points[0]
    bound = 1 / (base["support/strategy"] - base["max_prob/strategy"])
    return Outcome("held" if bound < 2.5 else "failed", f"r_anchor at most {bound:.2f} at strategy tokens, against 2.5")


@registered("paper", "apo_random_anchors", "apo")
def _support_helps(runs: Runs) -> Outcome:
    """It is the reference's support that helps: with anchors drawn at random pass@64 is below APO's."""
    return _every_seed(runs, "apo_random_anchors", "apo")


@registered("theory", "apo_gate_only", "apo")
def _gate_alone(runs: Runs) -> Outcome:
    """The pull's gradient matters little here: with the gate alone pass@64 is within .03 of APO's."""
    return _within(runs, "apo_gate_only", "apo", 0.03)


@registered("theory", "apo_ungated", "apo")
def _clip_alone(runs: Runs) -> Outcome:
    """The clip does not touch the pull here: with the pull outside it pass@64 is within .03 of APO's."""
    return _within(runs, "apo_ungated", "apo", 0.03)


@registered("theory", "apo", "apo_cross_entropy")
def _persistent_pull(runs: Runs) -> Outcome:
    """A pull that does not fade with its anchor (cross-entropy) keeps more pass@64 than APO's."""
    return _every_seed(runs, "apo", "apo_cross_entropy")


@registered("theory", "apo", "grpo_topk_forward_kl")
def _forward_kl(runs: Runs) -> Outcome:
    """So does the forward KL on the same tokens, outside the ratio."""
    return _every_seed(runs, "apo", "grpo_topk_forward_kl")


@registered("theory", "apo", "apo_always")
def _pull_everywhere(runs: Runs) -> Outcome:
    """And so does a pull on correct answers too."""
    return _every_seed(runs, "apo", "apo_always")


def _above_zero(found: Estimate | None, what: str) -> Outcome:
    """Held where the whole interval is above 0, failed where it is below, undecided otherwise."""
    if found is None or not math.isfinite(found.low):
        return Outcome("undecided", f"{what}: no interval")
    text = f"{what} {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return Outcome("held" if found.low > 0 else "failed" if found.high < 0 else "undecided", text)


def _every_seed(runs: Runs, low: str, high: str) -> Outcome:
    """Held where `high` has the higher pass@64 at the last step with every seed, failed where with none."""
    gaps, text = _gaps(runs, low, high)
    return Outcome("held" if min(gaps) > 0 else "failed" if max(gaps) < 0 else "undecided", text)


def _within(runs: Runs, low: str, high: str, bound: float) -> Outcome:
    """Held where the mean gap in pass@64 at the last step is at most `bound`."""
    gaps, text = _gaps(runs, low, high)
    return Outcome("held" if abs(sum(gaps) / len(gaps)) <= bound else "failed", text)


def _gaps(runs: Runs, low: str, high: str) -> tuple[list[float], str]:
    """By how much `high` exceeds `low` in pass@64 at the last step, seed by seed, and the same as text."""
    by_seed = {run.seed: run for run in runs[low]}
    pairs = [(by_seed[run.seed], run) for run in runs[high] if run.seed in by_seed]
    gaps = [(one.pass_at(64) - other.pass_at(64)).mean().item() for other, one in pairs]
    values = ", ".join(f"{gap:+.3f}" for gap in gaps)
    return gaps, f"pass@64 at the last step, {method_name(high)} − {method_name(low)}, by seed {values}"


def _level(runs: Runs) -> float:
    return LEVELS[runs["apo"][0].puzzle][1]


def _matched_gap(runs: Runs, metric: str) -> Estimate | None:
    return matched_difference(runs["grpo"], runs["apo"], _level(runs), metric)


def _entropy(runs: Runs, kind: str) -> Outcome:
    what = f"entropy of {kind} tokens at pass@1 = {_level(runs)} [nats], APO − GRPO"
    return _above_zero(_matched_gap(runs, f"entropy/{kind}"), what)


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

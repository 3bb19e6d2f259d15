"""What was predicted before the runs that decide it, and whether it held: each prediction can fail.

All but those on the controls of the mechanism, their thresholds and the levels of pass@1 were fixed when only GRPO had
been run on the puzzles; those on the controls when all but these had been.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from apo_lab.reporting.laboratory.reading import LabRun
from apo_lab.reporting.laboratory.statistics import difference, matched_difference, welch
from apo_lab.reporting.names import method_name
from apo_lab.statistics.exact import DEAD
from apo_lightning.evaluation.records import Estimate

Runs = Mapping[str, Sequence[LabRun]]
"""The runs of one puzzle, by method."""
Outcome = Literal["held", "failed", "undecided", "not run"]

LEVELS: Mapping[str, tuple[float, float, float]] = {"locks": (0.30, 0.33, 0.36), "countdown": (0.25, 0.265, 0.28)}
"""Levels of pass@1 at which methods are compared, by puzzle."""
REVIVED = 2.0
"""A dead branch counts as revived from this many times `DEAD` on: at the barrier itself rounding would count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a prediction on one puzzle."""

    puzzle: str
    outcome: Outcome
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One statement that the runs decide."""

    name: str
    source: str
    """Whose it is: the paper's claim, or this project's reading of the algorithm."""
    statement: str
    puzzles: tuple[str, ...]
    judge: Callable[[Runs], tuple[Outcome, str]]
    methods: tuple[str, ...]
    """Methods that it needs."""

    def verdict(self, puzzle: str, runs: Runs) -> Verdict:
        """Decide it, where all its methods were run with two seeds or more."""
        missing = [method for method in self.methods if len(runs.get(method, ())) < 2]
        if missing:
            return Verdict(puzzle=puzzle, outcome="not run", evidence=f"needs two seeds of {', '.join(missing)}")
        outcome, evidence = self.judge(runs)
        return Verdict(puzzle=puzzle, outcome=outcome, evidence=evidence)


def _above_zero(found: Estimate | None, what: str) -> tuple[Outcome, str]:
    """Held where the whole interval is above 0, failed where it is below, undecided else."""
    if found is None or not math.isfinite(found.low):
        return "undecided", f"{what}: no interval"
    text = f"{what} {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return ("held" if found.low > 0 else "failed" if found.high < 0 else "undecided"), text


def _collapse(runs: Runs) -> tuple[Outcome, str]:
    """Held where the interval of GRPO's pass@64 minus the base's is below 0 and its mean at most −.05."""
    grpo = runs["grpo"]
    changes = [(run.pass_at(64) - run.pass_at(64, 0)).mean().item() for run in grpo]
    text = "change of pass@64 by seed " + ", ".join(f"{change:+.3f}" for change in changes)
    return ("held" if max(changes) <= -0.05 else "failed"), text


def _last_step(runs: Runs) -> tuple[Outcome, str]:
    return _above_zero(difference(runs["grpo"], runs["apo"], 64), "pass@64 at the last step, APO − GRPO")


def _matched(runs: Runs) -> tuple[Outcome, str]:
    level = LEVELS[runs["apo"][0].puzzle][1]
    found = matched_difference(runs["grpo"], runs["apo"], level, "pass@64")
    return _above_zero(found, f"pass@64 at pass@1 = {level}, APO − GRPO")


def _smaller_when_matched(runs: Runs) -> tuple[Outcome, str]:
    level = LEVELS[runs["apo"][0].puzzle][1]
    matched = matched_difference(runs["grpo"], runs["apo"], level, "pass@64")
    last = difference(runs["grpo"], runs["apo"], 64)
    if matched is None:
        return "undecided", f"a seed does not pass pass@1 = {level}"
    text = f"APO − GRPO in pass@64: {matched.value:+.3f} at pass@1 = {level}, {last.value:+.3f} at the last step"
    return ("held" if abs(matched.value) < abs(last.value) else "failed"), text


def _every_seed(low: str, high: str) -> Callable[[Runs], tuple[Outcome, str]]:
    """Held where `high` has the higher pass@64 at the last step with every seed, failed where with none."""

    def judge(runs: Runs) -> tuple[Outcome, str]:
        gaps = _gaps(runs, low, high)
        outcome: Outcome = "held" if min(gaps) > 0 else "failed" if max(gaps) < 0 else "undecided"
        return outcome, _by_seed(gaps, low, high)

    return judge


def _within(low: str, high: str, bound: float) -> Callable[[Runs], tuple[Outcome, str]]:
    """Held where the mean gap in pass@64 at the last step is at most `bound`."""

    def judge(runs: Runs) -> tuple[Outcome, str]:
        gaps = _gaps(runs, low, high)
        return ("held" if abs(sum(gaps) / len(gaps)) <= bound else "failed"), _by_seed(gaps, low, high)

    return judge


def _gaps(runs: Runs, low: str, high: str) -> list[float]:
    by_seed = {run.seed: run for run in runs[low]}
    pairs = [(by_seed[run.seed], run) for run in runs[high] if run.seed in by_seed]
    return [(one.pass_at(64) - other.pass_at(64)).mean().item() for other, one in pairs]


def _by_seed(gaps: Sequence[float], low: str, high: str) -> str:
    values = ", ".join(f"{gap:+.3f}" for gap in gaps)
    return f"pass@64 at the last step, {method_name(high)} − {method_name(low)}, by seed {values}"


def _slower_deaths(runs: Runs) -> tuple[Outcome, str]:
    alive = [[run.looks[-1]["alive"] for run in runs[method]] for method in ("grpo", "apo")]
    return _above_zero(welch(*alive), "share of valid branches alive at the last step, APO − GRPO")


def revived_share(run: LabRun) -> tuple[int, int]:
    """Valid branches that were dead at a look, and how many of them were revived at a later one."""
    dead = revived = None
    for look in range(len(run.steps)):
        scores = run.scores(look)
        mass = scores.valid_mass[scores.has_valid]
        if dead is None or revived is None:
            dead, revived = mass < DEAD, torch.zeros_like(mass, dtype=torch.bool)
            continue
        revived |= dead & (mass >= REVIVED * DEAD)
        dead |= mass < DEAD
    assert dead is not None
    assert revived is not None
    return int(dead.sum()), int(revived.sum())


def _no_revival(runs: Runs) -> tuple[Outcome, str]:
    counts = [revived_share(run) for run in runs["apo"]]
    num_dead, num_revived = (sum(column) for column in zip(*counts, strict=True))
    if num_dead == 0:
        return "undecided", "no branch died"
    share = num_revived / num_dead
    return ("held" if share <= 0.05 else "failed"), f"{num_revived} of {num_dead} dead branches revived ({share:.1%})"


def _outside_dies_sooner(runs: Runs) -> tuple[Outcome, str]:
    """The gap between ranks 1–8 and 9–12 in the share alive, under APO minus under GRPO."""
    gaps = []
    for method in ("grpo", "apo"):
        gaps.append([_alive(run, slice(0, 8)) - _alive(run, slice(8, 12)) for run in runs[method]])
    return _above_zero(welch(*gaps), "share alive, base ranks 1–8 minus 9–12, APO − GRPO")


def _alive(run: LabRun, ranks: slice) -> float:
    scores = run.last
    mass, valid = scores.valid_mass[:, ranks], scores.has_valid[:, ranks]
    return (mass[valid] >= DEAD).double().mean().item()


def _entropy(kind: str) -> Callable[[Runs], tuple[Outcome, str]]:
    def judge(runs: Runs) -> tuple[Outcome, str]:
        level = LEVELS[runs["apo"][0].puzzle][1]
        found = matched_difference(runs["grpo"], runs["apo"], level, f"entropy/{kind}")
        return _above_zero(found, f"entropy of {kind} tokens at pass@1 = {level} [nats], APO − GRPO")

    return judge


def _no_choice_among_all(runs: Runs) -> tuple[Outcome, str]:
    """At K = 12 the pull chooses nothing among the strategies: pass@64 within .03 of the push alone."""
    found = difference(runs["push_only"], runs["apo_k12"], 64)
    text = f"pass@64, K = 12 minus β = 0: {found.value:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"
    return ("held" if abs(found.value) <= 0.03 else "failed"), text


def _never_saturated(runs: Runs) -> tuple[Outcome, str]:
    """1/Z_ref bounds r_anchor; Z_ref ≥ the base's mass on its top 8 minus its largest."""
    base = runs["apo"][0].looks[0]
    bound = 1 / (base["support/strategy"] - base["max_prob/strategy"])
    return ("held" if bound < 2.5 else "failed"), f"r_anchor at most {bound:.2f} at strategy tokens, against 2.5"


PREDICTIONS: tuple[Prediction, ...] = (
    Prediction(
        name="collapse",
        source="paper",
        statement="Under GRPO pass@64 falls below the base model's, by .05 or more with every seed.",
        puzzles=("locks", "countdown"),
        judge=_collapse,
        methods=("grpo",),
    ),
    Prediction(
        name="apo_last",
        source="paper",
        statement="At the last step APO's pass@64 is above GRPO's.",
        puzzles=("locks", "countdown"),
        judge=_last_step,
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="apo_matched",
        source="paper",
        statement="At matched pass@1 APO's pass@64 is above GRPO's: it lies nearer the frontier.",
        puzzles=("locks", "countdown"),
        judge=_matched,
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="smaller_when_matched",
        source="theory",
        statement="APO differs from GRPO less at matched pass@1 than at the last step.",
        puzzles=("locks", "countdown"),
        judge=_smaller_when_matched,
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="slower_deaths",
        source="theory",
        statement="Branches that shrink do so more slowly under APO: more valid branches are alive at the last step.",
        puzzles=("locks", "countdown"),
        judge=_slower_deaths,
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="no_revival",
        source="theory",
        statement="Branches that are dead stay dead under APO: at most 5 % of them are revived within the run.",
        puzzles=("locks", "countdown"),
        judge=_no_revival,
        methods=("apo",),
    ),
    Prediction(
        name="outside_dies_sooner",
        source="theory",
        statement="Strategies outside the base model's top 8 gain less from APO than those inside.",
        puzzles=("locks",),
        judge=_outside_dies_sooner,
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="digit_entropy",
        source="theory",
        statement="At matched pass@1 the digits, where the reference is surer, keep more entropy under APO.",
        puzzles=("locks",),
        judge=_entropy("digit"),
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="strategy_entropy",
        source="paper",
        statement="At matched pass@1 the choice of a strategy keeps more entropy under APO.",
        puzzles=("locks",),
        judge=_entropy("strategy"),
        methods=("grpo", "apo"),
    ),
    Prediction(
        name="no_choice_among_all",
        source="theory",
        statement="With all twelve strategies among the anchors (K = 12) APO is its push alone: pass@64 within .03.",
        puzzles=("locks",),
        judge=_no_choice_among_all,
        methods=("push_only", "apo_k12"),
    ),
    Prediction(
        name="never_saturated",
        source="theory",
        statement="At strategy tokens r_anchor cannot reach 2.5, so the pull is never switched off there.",
        puzzles=("locks",),
        judge=_never_saturated,
        methods=("apo",),
    ),
    Prediction(
        name="support_helps",
        source="paper",
        statement="It is the reference's support that helps: with anchors drawn at random pass@64 is below APO's.",
        puzzles=("locks",),
        judge=_every_seed("apo_random_anchors", "apo"),
        methods=("apo_random_anchors", "apo"),
    ),
    Prediction(
        name="gate_alone",
        source="theory",
        statement="The pull's gradient matters little here: with the gate alone pass@64 is within .03 of APO's.",
        puzzles=("locks",),
        judge=_within("apo_gate_only", "apo", 0.03),
        methods=("apo_gate_only", "apo"),
    ),
    Prediction(
        name="clip_alone",
        source="theory",
        statement="The clip does not touch the pull here: with the pull outside it pass@64 is within .03 of APO's.",
        puzzles=("locks",),
        judge=_within("apo_ungated", "apo", 0.03),
        methods=("apo_ungated", "apo"),
    ),
    Prediction(
        name="persistent_pull",
        source="theory",
        statement="A pull that does not fade with its anchor (cross-entropy) keeps more pass@64 than APO's.",
        puzzles=("locks",),
        judge=_every_seed("apo", "apo_cross_entropy"),
        methods=("apo", "apo_cross_entropy"),
    ),
    Prediction(
        name="forward_kl",
        source="theory",
        statement="So does the forward KL on the same tokens, outside the ratio.",
        puzzles=("locks",),
        judge=_every_seed("apo", "grpo_topk_forward_kl"),
        methods=("apo", "grpo_topk_forward_kl"),
    ),
    Prediction(
        name="pull_everywhere",
        source="theory",
        statement="And so does a pull on correct answers too.",
        puzzles=("locks",),
        judge=_every_seed("apo", "apo_always"),
        methods=("apo", "apo_always"),
    ),
)

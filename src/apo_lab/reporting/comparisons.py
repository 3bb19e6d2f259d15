"""The comparisons of each question, and their verdicts as far as the runs are finished."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from apo_lab.editions.protocol import BLOCKS, HALF, Prediction, Question, method_of
from apo_lab.reporting.reading import Edition, arm_name
from apo_lab.statistics.verdicts import (
    MIN_SEEDS,
    ArmScores,
    Contrast,
    Outcome,
    Verdict,
    compare,
    compare_instances,
    decide,
)

DECIDED = (Outcome.HIGHER, Outcome.LOWER, Outcome.EQUIVALENT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two arms of a question."""

    before: str
    after: str
    contrast: Contrast | None
    """In the worlds where both have runs with a value; None: in none."""
    has_all_worlds: bool
    """False: in a world no run of an arm has a value, since none has reached L*, or none is made."""
    last: Contrast | None
    """The same of pass@64 at the last step, a secondary endpoint without a verdict; None for averages too."""
    verdict: Verdict | None
    """None until all runs of both arms are finished: the number of seeds is fixed, so no verdict comes early."""
    num_done: int
    num_planned: int

    @property
    def label(self) -> str:
        """`APO − GRPO`, the first cell of its row."""
        return f"{arm_name(self.after)} − {arm_name(self.before)}"

    @property
    def is_finished(self) -> bool:
        """Whether all planned runs are there."""
        return self.num_done == self.num_planned

    @property
    def outcome(self) -> str:
        """The verdict, or how many runs there are."""
        return self.verdict.outcome if self.verdict else f"{self.num_done} of {self.num_planned} runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question and its comparisons, one family for Holm's method."""

    question: Question
    comparisons: tuple[Comparison, ...]


def answered(edition: Edition) -> list[Answered]:
    """Every question that has a run of both arms of a pair, or all its runs and none with a value."""
    found = [_answer(edition, question) for question in edition.protocol.questions]
    return [each for each in found if any(comparison.contrast or comparison.verdict for comparison in each.comparisons)]


def prediction_outcome(prediction: Prediction, questions: Sequence[Answered]) -> tuple[str, str]:
    """`held`, `failed` or `undecided`, and the row that it rests on: table, section and first cell."""
    rows = {(each.question.key, c.before, c.after): (each.question, c) for each in questions for c in each.comparisons}
    if (key := (prediction.question, *prediction.pair)) not in rows:
        return "undecided", "no run"
    question, comparison = rows[key]
    outcome = "held" if comparison.outcome == prediction.expected else "failed"
    is_decided = comparison.outcome in DECIDED
    return outcome if is_decided else "undecided", f"lab_{question.stage}_verdicts: {question.key}: {comparison.label}"


def _answer(edition: Edition, question: Question) -> Answered:
    found = [_compared(edition, question, before, after) for before, after in question.pairs]
    # A comparison that waits for runs counts in the family with p = 1: later, the others' adjusted p only falls.
    decidable = [each.contrast if each.is_finished and each.has_all_worlds else None for each in found]
    verdicts = decide([contrast or _WAITING for contrast in decidable], edition.protocol.margin)
    return Answered(
        question=question,
        comparisons=tuple(
            replace(each, verdict=verdict if each.is_finished else None)
            for each, verdict in zip(found, verdicts, strict=True)
        ),
    )


def _compared(edition: Edition, question: Question, before: str, after: str) -> Comparison:
    stage = edition.protocol.stage(question.stage)
    arms = [edition.arm(stage, question.worlds, name) for name in (before, after) if name != HALF]
    with_runs = [set(arm.scores(question.endpoint).tables) for arm in arms]
    common = [world for world in question.worlds if all(world in worlds for worlds in with_runs)]
    is_trained = before == method_of(before) != HALF and after == method_of(after)

    def contrast(endpoint: str) -> Contrast:
        scores = [arm.within(common).scores(endpoint) for arm in arms]
        if before == HALF:  # on all problems: a logit of 0
            scores.insert(0, ArmScores(name=HALF, tables={world: torch.zeros(MIN_SEEDS, BLOCKS) for world in common}))
        return compare_instances(*scores) if question.unit == "instance" else compare(*scores)

    return Comparison(
        before=before,
        after=after,
        contrast=contrast(question.endpoint) if common else None,
        has_all_worlds=len(common) == len(question.worlds),
        last=contrast("last") if common and is_trained else None,
        verdict=None,
        num_done=sum(len(arm.runs) for arm in arms),
        num_planned=sum(arm.num_planned for arm in arms),
    )


_NOTHING = ArmScores(name="", tables={"": torch.zeros(1, 2)})
_WAITING = compare(_NOTHING, _NOTHING)

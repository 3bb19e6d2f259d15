"""The page's sentences: an answer to each question, the best candidate, and what to run; each names its rows."""

from collections.abc import Iterator, Sequence

from apo_lab.editions.protocol import AVERAGED, Question
from apo_lab.reporting.laboratory.comparisons import DECIDED, Answered, Comparison
from apo_lab.reporting.laboratory.reading import MAIN, ArmRuns, Edition, arm_name
from apo_lab.reporting.records import Table, TableRow, left, row_of
from apo_lab.statistics.verdicts import Outcome

ALLOWANCE = 1.05
"""A run with up to so many times the reference's seconds has the same budget."""


def answers_table(edition: Edition, questions: Sequence[Answered]) -> Table:
    """A sentence for each question, and one about the candidates."""
    rows = [
        row_of(each.question.text, _place(edition, each.question), answer(each), f"{each.table}: {each.question.key}")
        for each in questions
    ]
    return Table(
        name="lab_answers",
        title="Answers",
        columns=left("Question", "Worlds", "Answer", "Rests on"),
        rows=(*rows, *_candidate_row(edition, questions)),
        notes=("Made from the verdicts; in brackets: the difference [points]. Rests on: table, section and row.",),
    )


def answer(each: Answered) -> str:
    """The comparisons of a question by verdict."""
    parts = []
    for outcome in (*DECIDED, Outcome.UNDECIDED, Outcome.TOO_FEW_SEEDS):
        if found := each.with_outcome(outcome):
            parts.append(f"{outcome.capitalize()}: {', '.join(_with_difference(comparison) for comparison in found)}.")
    if num_waiting := sum(comparison.verdict is None for comparison in each.comparisons):
        parts.append(f"{num_waiting} of {len(each.comparisons)} comparisons wait for runs.")
    return " ".join(parts)


def candidate_sentence(edition: Edition, questions: Sequence[Answered]) -> tuple[str, str] | None:
    """Which candidate is `higher` than every published method in every world, or which comes nearest; and its row.

    A candidate is an arm that questions compare with every tuned method. Nearest: its smallest difference is the
    largest. None until a candidate has a verdict in every comparison.
    """
    found: dict[str, list[tuple[Answered, Comparison]]] = {}
    for each in questions:
        for name in dict.fromkeys(comparison.after for comparison in each.comparisons):
            own = [comparison for comparison in each.comparisons if comparison.after == name]
            if name not in edition.protocol.tuned and {c.before for c in own} >= set(edition.protocol.tuned) != set():
                found.setdefault(name, []).extend((each, comparison) for comparison in own)
    complete = {name: rows for name, rows in found.items() if all(row.verdict for _, row in rows)}
    if not complete:
        return None
    worst = {name: min(rows, key=lambda row: _difference(row[1])) for name, rows in complete.items()}
    best = max(complete, key=lambda name: _difference(worst[name][1]))
    rows, (each, comparison) = complete[best], worst[best]
    num_higher = sum(row.verdict is not None and row.verdict.outcome == Outcome.HIGHER for _, row in rows)
    is_above = num_higher == len(rows)
    first = (
        f"{arm_name(best)} is higher than every published method in every world"
        if is_above
        else f"No candidate is higher than every published method in every world; {arm_name(best)} comes nearest, "
        f"higher in {num_higher} of {len(rows)} comparisons"
    )
    smallest = f"its smallest difference is {_with_difference(comparison)} on {_place(edition, each.question)}."
    return f"{first}: {smallest}", each.reference(comparison)


def recommendations_table(edition: Edition, questions: Sequence[Answered]) -> Table:
    """Aim, budget, what to run, and the row that it rests on."""
    rows = [row for each in questions if each.question.stage == MAIN for row in _recommended(edition, each)]
    return Table(
        name="lab_recommendations",
        title="What to run",
        columns=left("Your aim", "Your budget", "What to run", "Rests on"),
        rows=tuple(rows),
        notes=("Made from the verdicts: an aim whose comparisons are not finished has no row.",),
    )


def _recommended(edition: Edition, each: Answered) -> Iterator[TableRow]:
    aim = f"pass@64 at equal pass@1, on {_place(edition, each.question)}"
    if any(comparison.verdict is None for comparison in each.comparisons):
        return
    higher = sorted(each.with_outcome(Outcome.HIGHER), key=_difference, reverse=True)
    references = {comparison.before for comparison in each.comparisons}
    whole = f"{each.table}: {each.question.key}"
    if all(comparison.after == comparison.before + AVERAGED for comparison in each.comparisons):
        run = _sentence(higher[0]) if higher else "the last policy as it is: no average is higher"
        yield row_of(aim, "no training: average the last policy", run, each.reference(higher[0]) if higher else whole)
    elif len(references) == 1:
        reference = arm_name(references.pop())
        run, row = (
            (_sentence(higher[0]), each.reference(higher[0])) if higher else (f"{reference}: none is higher", whole)
        )
        yield row_of(aim, "tuning, then any number of seconds", run, row)
        cheap = [c for c in higher if _seconds(edition, each, c.after) <= ALLOWANCE * _seconds(edition, each, c.before)]
        if higher and cheap[:1] != higher[:1]:
            run, row = (
                (_sentence(cheap[0]), each.reference(cheap[0]))
                if cheap
                else (f"{reference}: what is higher takes longer", "lab_cost")
            )
            yield row_of(aim, f"tuning, then the seconds of {reference}", run, row)


def _candidate_row(edition: Edition, questions: Sequence[Answered]) -> list[TableRow]:
    found = candidate_sentence(edition, questions)
    text = "Is there a method above the whole curve of every published one, in every world?"
    return [row_of(text, "all of its questions", *found)] if found else []


def _sentence(comparison: Comparison) -> str:
    return f"{arm_name(comparison.after)}: {_with_difference(comparison)}"


def _with_difference(comparison: Comparison) -> str:
    return f"{comparison.label} ({100 * _difference(comparison):+.2f})"


def _difference(comparison: Comparison) -> float:
    assert comparison.contrast is not None
    return comparison.contrast.difference.mean


def _seconds(edition: Edition, each: Answered, name: str) -> float:
    arm: ArmRuns = edition.arm(edition.protocol.stage(each.question.stage), each.question.worlds, name)
    return arm.mean("seconds")


def _place(edition: Edition, question: Question) -> str:
    return edition.group_name(question.worlds)

"""The page's sentences: an answer to each question, the best candidate, and what to run; each names its rows."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from apo_lab.editions.protocol import AVERAGED
from apo_lab.reporting.laboratory.comparisons import Answered, Comparison
from apo_lab.reporting.laboratory.long_runs import MEAN
from apo_lab.reporting.laboratory.reading import MAIN, ArmRuns, Edition, arm_name
from apo_lab.reporting.records import Table, TableRow, left, row_of
from apo_lab.statistics.verdicts import Outcome

ALLOWANCE = 1.05
"""A run with up to so many times the reference's seconds has the same budget."""
MOST_LISTED = 12
"""Comparisons up to which an answer gives each difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestCandidate:
    """The candidate whose smallest difference to a published method is the largest."""

    name: str
    is_above: bool
    """Whether it is `higher` than every published method in every world."""
    sentence: str
    rests_on: str


def answers_table(edition: Edition, questions: Sequence[Answered], tables: Sequence[Table]) -> Table:
    """A sentence for each question, about the best candidate, about long runs and about cost.

    Args:
        edition: the runs.
        questions: the verdicts.
        tables: `lab_long` and `lab_cost`, if there are such runs.
    """
    rows = [
        row_of(each.question.text, _place(edition, each), answer(each), f"{each.table}: {each.question.key}")
        for each in questions
    ]
    if best := best_candidate(edition, questions):
        text = "Is there a method above the whole curve of every published one, in every world?"
        rows.append(row_of(text, "all", best.sentence, best.rests_on))
    for table in tables:
        rows += _of_long_runs(table) if table.name == "lab_long" else _of_cost(table)
    return Table(
        name="lab_answers",
        title="Answers",
        columns=left("Question", "Worlds", "Answer", "Rests on"),
        rows=tuple(rows),
        notes=("In brackets: the difference [points]. Rests on: table, section and row.",),
    )


def answer(each: Answered) -> str:
    """The comparisons of a question by verdict; only counted, arm by arm, if they are many."""
    if len(each.comparisons) > MOST_LISTED:
        parts = [_counts(each, name) for name in dict.fromkeys(comparison.after for comparison in each.comparisons)]
    else:
        found = {outcome: each.with_outcome(outcome) for outcome in Outcome}
        parts = [f"{outcome.capitalize()}: {_listed(some)}." for outcome, some in found.items() if some]
    if num_waiting := sum(comparison.verdict is None for comparison in each.comparisons):
        parts.append(f"{num_waiting} of {len(each.comparisons)} comparisons wait for runs.")
    return " ".join(parts)


def best_candidate(edition: Edition, questions: Sequence[Answered]) -> BestCandidate | None:
    """Which candidate is `higher` than every published method in every world, or which comes nearest.

    A candidate is an arm that a question compares with every tuned method; nearest: its smallest difference is the
    largest. None until a candidate has a verdict in each of its comparisons.
    """
    tuned, found = set(edition.protocol.tuned), dict[str, list[tuple[Answered, Comparison]]]()
    for each in questions:
        for name in {comparison.after for comparison in each.comparisons} - tuned:
            own = [comparison for comparison in each.comparisons if comparison.after == name]
            if tuned and {comparison.before for comparison in own} >= tuned:
                found.setdefault(name, []).extend((each, comparison) for comparison in own)
    complete = {name: rows for name, rows in sorted(found.items()) if all(row.verdict for _, row in rows)}
    if not complete:
        return None
    worst = {name: min(rows, key=lambda row: _difference(row[1])) for name, rows in complete.items()}
    name = max(complete, key=lambda name: _difference(worst[name][1]))
    each, comparison = worst[name]
    outcomes = [row.verdict.outcome for _, row in complete[name] if row.verdict]
    num_higher = outcomes.count(Outcome.HIGHER)
    is_above = num_higher == len(outcomes)
    begin = f"{arm_name(name)} is" if is_above else f"No candidate is; {arm_name(name)} comes nearest and is"
    return BestCandidate(
        name=name,
        is_above=is_above,
        sentence=f"{begin} higher in {num_higher} of {len(outcomes)} comparisons; its smallest difference is "
        f"{_with_difference(comparison)} on {_place(edition, each)}.",
        rests_on=each.reference(comparison),
    )


def recommendations_table(edition: Edition, questions: Sequence[Answered]) -> Table:
    """Aim, budget, what to run, and the row that it rests on."""
    rows = [row for each in questions if each.question.stage == MAIN for row in _recommended(edition, each)]
    best = best_candidate(edition, questions)
    if best and best.is_above:
        rows.append(row_of("pass@64 at equal pass@1, on any of these", "any", arm_name(best.name), best.rests_on))
    return Table(
        name="lab_recommendations",
        title="What to run",
        columns=left("Your aim", "Your budget", "What to run", "Rests on"),
        rows=tuple(rows),
        notes=("Made from the verdicts: an aim whose comparisons are not finished has no row.",),
    )


def _recommended(edition: Edition, each: Answered) -> Iterator[TableRow]:
    aim = f"pass@64 at equal pass@1, on {_place(edition, each)}"
    if any(comparison.verdict is None for comparison in each.comparisons):
        return
    higher = sorted(each.with_outcome(Outcome.HIGHER), key=_difference, reverse=True)
    whole, first = f"{each.table}: {each.question.key}", each.comparisons[0].before
    if all(comparison.after == comparison.before + AVERAGED for comparison in each.comparisons):
        text = f"its average with the base model: {_listed(higher)}" if higher else "the policy: no average is higher"
        yield row_of(aim, "a policy that is trained already", text, whole)
    elif {comparison.before for comparison in each.comparisons} == {first}:
        limit = ALLOWANCE * _arm(edition, each, first).mean("seconds")
        cheap = [c for c in higher if _arm(edition, each, c.after).mean("seconds") <= limit]
        for budget, found in (("any", higher), (f"the seconds of {arm_name(first)}", cheap)):
            if found:
                settings = _arm(edition, each, found[0].after).settings
                run = f"{arm_name(found[0].after)}, {settings}: {_with_difference(found[0])}"
                yield row_of(aim, budget, run, each.reference(found[0]))
            else:
                yield row_of(aim, budget, f"{arm_name(first)}: nothing is higher", whole)


def _listed(comparisons: Sequence[Comparison]) -> str:
    return "; ".join(f"{arm_name(each.after)} ({100 * _difference(each):+z.2f})" for each in comparisons)


def _counts(each: Answered, name: str) -> str:
    outcomes = [comparison.outcome for comparison in each.comparisons if comparison.after == name]
    counts = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in Outcome if outcome in outcomes)
    return f"{arm_name(name)}: {counts or 'no verdict'}."


def _of_long_runs(table: Table) -> Iterator[TableRow]:
    for row in (row for row in table.rows if row.cells[0].text == MEAN):
        _, lowest, last, _, _, pass_1, slope = (cell.text for cell in row.cells)
        text = f"pass@64 {lowest} at its lowest, {last} at the end; pass@1 {pass_1}, {slope} points per 100 steps."
        yield row_of(
            "Does collapse reverse, and is it converged?", row.section, text, f"lab_long: {row.section}: {MEAN}"
        )


def _of_cost(table: Table) -> Iterator[TableRow]:
    for section, rows in table.sections:
        each = [[cell.text for cell in row.cells] for row in rows]
        costs = (f"{name} {sampled} / {trained} / {seconds}" for name, sampled, trained, seconds, *_ in each)
        text = f"Tokens sampled / tokens trained / seconds of a run: {'; '.join(costs)}."
        yield row_of("What does it cost?", section, text, f"lab_cost: {section}")


def _with_difference(comparison: Comparison) -> str:
    return f"{comparison.label} ({100 * _difference(comparison):+z.2f})"


def _difference(comparison: Comparison) -> float:
    assert comparison.contrast is not None
    return comparison.contrast.difference.mean


def _arm(edition: Edition, each: Answered, name: str) -> ArmRuns:
    return edition.arm(edition.protocol.stage(each.question.stage), each.question.worlds, name)


def _place(edition: Edition, each: Answered) -> str:
    return edition.group_name(each.question.worlds)

"""The page's sentences: level by level, on each question, on the best candidate; each names the rows it rests on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from apo_lab.reporting.laboratory.comparisons import Answered, Comparison
from apo_lab.reporting.laboratory.level_tables import apart, differences_name
from apo_lab.reporting.laboratory.levels import groups
from apo_lab.reporting.laboratory.long_runs import MEAN
from apo_lab.reporting.laboratory.reading import Edition, arm_name
from apo_lab.reporting.records import Table, TableRow, left, row_of
from apo_lab.statistics.verdicts import Outcome

OF_AREA = (
    "Their endpoint `area` is a mean over all levels of pass@1 up to L*: it hardly shows a fall at the last of them, "
    "and counts a level that a run does not reach in its steps as 0."
)
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


def answers_table(edition: Edition, questions: Sequence[Answered], long: Sequence[Table]) -> Table:
    """A sentence for each group of worlds level by level, for each question, about the best candidate and long runs.

    Args:
        edition: the runs.
        questions: the verdicts.
        long: `lab_long`, if there are such runs.
    """
    levels = "At which pass@1 does a method have another pass@64 than the first one? (explored after the runs)"
    rows = [row_of(levels, each.name, apart(each), f"{differences_name(each)}: pass@64") for each in groups(edition)]
    rows += [
        row_of(each.question.text, _place(edition, each), answer(each), f"{each.table}: {each.question.key}")
        for each in questions
    ]
    if best := best_candidate(edition, questions):
        text = "Is there a method above the whole curve of every published one, in every world?"
        rows.append(row_of(text, "all", best.sentence, best.rests_on))
    rows += [row for table in long for row in _of_long_runs(table)]
    return Table(
        name="lab_answers",
        title="Answers",
        columns=left("Question", "Worlds", "Answer", "Rests on"),
        rows=tuple(rows),
        notes=(
            "In brackets: the difference [points]. Rests on: table, section and row. The questions were registered.",
            *([OF_AREA] if "area" in {each.question.endpoint for each in questions} else []),
        ),
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
    complete = {
        name: rows for name, rows in sorted(found.items()) if all(row.verdict and row.contrast for _, row in rows)
    }
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


def _listed(comparisons: Sequence[Comparison]) -> str:
    shown = (f" ({100 * _difference(each):+z.2f})" if each.contrast else "" for each in comparisons)
    return "; ".join(f"{arm_name(each.after)}{difference}" for each, difference in zip(comparisons, shown, strict=True))


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


def _with_difference(comparison: Comparison) -> str:
    return f"{comparison.label} ({100 * _difference(comparison):+z.2f})"


def _difference(comparison: Comparison) -> float:
    assert comparison.contrast is not None
    return comparison.contrast.difference.mean


def _place(edition: Edition, each: Answered) -> str:
    return edition.group_name(each.question.worlds)

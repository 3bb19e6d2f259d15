"""Do the paper's numbers add up? Averages from their cells, and shares from counts of problems and samples."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import floor

from apo_lab.reporting.names import axis_name, benchmark_name, method_name, model_name
from apo_lab.reporting.published import AVERAGE, NUM_PROBLEMS, NUM_SAMPLES, PublishedCell, published
from apo_lab.reporting.records import Cell, Column, Table, TableRow

KINDS: Mapping[str, str] = {
    "average": "is not the mean of its row's cells",
    "count": "is no share of the problems and samples there are",
    "cut": "is such a share only if its digits were cut off, not rounded",
    "repeats": "repeats the K = 16 value under K = 32",
    "differs": "differs from the same number in another table",
    "complement": "does not complete its recall to 100 %",
}
"""What can be wrong with a cell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inconsistency:
    """One way in which one published cell cannot be right."""

    cell: PublishedCell
    kind: str
    """A key of `KINDS`."""
    expected: str
    """The value that the cell should have, as far as can be told: the recomputed mean, the nearest shares."""


def inconsistencies() -> tuple[Inconsistency, ...]:
    """Every published cell that contradicts others or arithmetic, recomputed in exact fractions.

    - A mean must follow from its cells, each of which may be off by half of its last digit.
    - Pass@K from n = K samples is "any correct": a multiple of 1/P over P problems.
    - Pass@1 as avg@n is a multiple of 1/(P·n). This finds less the larger P·n: multiples closer than the printed
      digits fit any cell.
    - The default row of the sensitivity table is APO's row of the main table.
    - The distribution table says K = 32, the main table K = 16: with twice the samples no two models keep their
      Pass@K to the digit.
    - Recall and loss rate add up to 100 %.
    """
    main, sensitivity = published("main_results"), published("sensitivity")
    return (
        *_averages(main),
        *_counts(main),
        *_averages(sensitivity),
        *_counts(sensitivity),
        *_differences(sensitivity, main),
        *_distribution(main),
        *_complements(published("coverage")),
    )


def nearest_shares(cell: PublishedCell, denominator: int) -> tuple[Fraction, Fraction]:
    """The multiples of 100/denominator [%] on either side of what is printed; the same twice where it is one.

    Example:
        >>> cell = PublishedCell(table="", model="", method="", setting="", benchmark="", metric="", text="60", mark="")
        >>> nearest_shares(cell, 7)
        (Fraction(400, 7), Fraction(500, 7))
    """
    below = floor(cell.exact * denominator / 100)
    above = below if Fraction(100 * below, denominator) == cell.exact else below + 1
    return Fraction(100 * below, denominator), Fraction(100 * above, denominator)


def published_check() -> Table:
    """The cells of the paper's tables that do not add up, each with what it should be."""
    rows = []
    for found in inconsistencies():
        cell = found.cell
        texts = (
            model_name(cell.model),
            method_name(cell.method) + (f", {_setting(cell.setting)}" if cell.setting else ""),
            "Average" if cell.benchmark == AVERAGE else benchmark_name(cell.benchmark),
            cell.metric.replace("pass@", "Pass@"),
        )
        printed = Cell(text=cell.text, value=cell.value, marked=True)
        reason = (Cell(text=KINDS[found.kind]), Cell(text=found.expected))
        section = cell.table.replace("_", " ").capitalize()
        rows.append(TableRow(cells=(*(Cell(text=text) for text in texts), printed, *reason), section=section))
    return Table(
        name="published_check",
        title="Published numbers that do not add up",
        columns=(
            *(Column(name=name, align="left") for name in ("Model", "Method", "Benchmark", "Metric")),
            Column(name="Printed"),
            *(Column(name=name, align="left") for name in ("What is wrong", "What it should be")),
        ),
        rows=tuple(rows),
        notes=(
            "Recomputed from the printed cells in exact fractions; a cell may be off by half of its last digit.",
            "Counts assume the paper's own setting: P = 30, 30, 40, 500 and 272 problems, n = K samples of each.",
            _diversity_claim(),
        ),
    )


def _averages(cells: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    rows: dict[tuple[str, ...], list[PublishedCell]] = defaultdict(list)
    for cell in cells:
        family = "pass@1" if cell.metric == "pass@1" else "pass@K"
        rows[cell.model, cell.method, cell.setting, family].append(cell)
    for row in rows.values():
        parts = [cell for cell in row if cell.benchmark != AVERAGE]
        mean = sum((cell.exact for cell in parts), Fraction()) / len(parts)
        slack = sum((cell.half_unit for cell in parts), Fraction()) / len(parts)
        for average in row:
            if average.benchmark == AVERAGE and abs(average.exact - mean) > average.half_unit + slack:
                yield Inconsistency(cell=average, kind="average", expected=f"{float(mean):.2f}")


def _counts(cells: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    for cell in cells:
        if cell.benchmark == AVERAGE:
            continue
        samples = NUM_SAMPLES[cell.benchmark] if cell.metric == "pass@1" else 1
        denominator = NUM_PROBLEMS[cell.benchmark] * samples
        below, above = nearest_shares(cell, denominator)
        if cell.exact - below <= cell.half_unit or above - cell.exact <= cell.half_unit:
            continue
        kind = "cut" if above - cell.exact < 2 * cell.half_unit else "count"
        yield Inconsistency(cell=cell, kind=kind, expected=_shares((below, above), denominator))


def _shares(shares: tuple[Fraction, Fraction], denominator: int) -> str:
    parts = [f"{float(share):.2f} ({int(share * denominator / 100)}/{denominator})" for share in shares]
    return " or ".join(parts)


def _differences(sensitivity: tuple[PublishedCell, ...], main: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    same = {(cell.model, cell.method, cell.benchmark, cell.metric): cell for cell in main}
    for cell in sensitivity:
        if cell.setting:
            continue
        other = same[cell.model, cell.method, cell.benchmark, cell.metric]
        if abs(cell.exact - other.exact) > cell.half_unit + other.half_unit:
            yield Inconsistency(cell=cell, kind="differs", expected=f"{other.text} (main results)")


def _distribution(main: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    pass_at_32 = tuple(cell for cell in published("distribution") if cell.metric == "pass@32")
    yield from _counts(pass_at_32)
    at_16 = {
        (cell.model, cell.method): cell for cell in main if (cell.benchmark, cell.metric) == ("minerva_math", "pass@16")
    }
    if all(cell.exact == at_16[cell.model, cell.method].exact for cell in pass_at_32):
        for cell in pass_at_32:
            yield Inconsistency(cell=cell, kind="repeats", expected=f"at least {cell.text}, from 32 samples")


def _complements(coverage: tuple[PublishedCell, ...]) -> Iterator[Inconsistency]:
    recall = {cell.metric.partition("@")[2]: cell for cell in coverage if cell.metric.startswith("recall@")}
    for cell in coverage:
        if cell.metric.startswith("loss_rate@"):
            other = recall[cell.metric.partition("@")[2]]
            if abs(cell.exact + other.exact - 100) > cell.half_unit + other.half_unit:
                yield Inconsistency(cell=cell, kind="complement", expected=f"{float(100 - other.exact):.2f}")


def _setting(setting: str) -> str:
    key, _, value = setting.partition("=")
    return f"{axis_name(key)} = {value}"


def _diversity_claim() -> str:
    averages = {c.setting: c for c in published("sensitivity") if c.benchmark == AVERAGE and c.metric == "pass@K"}
    wide, default = averages["algo.loss.anchor_size=16"], averages[""]
    best = max(averages.values(), key=lambda cell: cell.exact)
    relation = "below" if wide.exact < default.exact else "not below"
    return (
        f"In words: the “minor diversity gains” of K = 16 are an average Pass@K of {wide.text}, {relation} the "
        f"default's {default.text}; the best is {best.text}, at {_setting(best.setting)}."
    )
